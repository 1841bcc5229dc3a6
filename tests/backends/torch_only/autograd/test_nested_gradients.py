"""Gradients of modules inside modules; those of inputs against an independent computation.

A gradient of an input counts what flows through the module alone. The reference run gives every module copies of its
inputs, of which nothing else takes a gradient, and keeps theirs.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

WIDTH = 6


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


class Product(nn.Module):
    """Of two modules, called with two inputs or with one twice."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: Any, y: Any = None) -> Any:
        return self.one(x) * self.other(x if y is None else y)


class Both(nn.Module):
    """Calls a module of two inputs with what it was given and what it made of it."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Any) -> Any:
        return self.second(x, self.first(x))


class Halves(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> tuple[Any, Any]:
        y = self.inner(x)
        return y[:, : WIDTH // 2], y.sin()[:, WIDTH // 2 :]


class Joined(nn.Module):
    def __init__(self, halves: Halves) -> None:
        super().__init__()
        self.halves = halves

    def forward(self, x: Any) -> Any:
        left, right = self.halves(x)
        return torch.cat((right, left), 1) if left.sum() > 0 else torch.cat((left, right), 1)


class Outside(nn.Module):
    """Uses a tensor that it was not given."""

    def __init__(self, inner: nn.Module, outside: dict[str, Any]) -> None:
        super().__init__()
        self.inner = inner
        self.outside = outside

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.outside["first"] + self.outside["leaf"]


class InPlace(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x).mul_(0.5).add_(x)


class Reshaped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x.view(-1, 1, WIDTH)).view(-1, WIDTH)


class Remembering(nn.Module):
    """Keeps what it has half-way, as models do with hidden states and auxiliary losses."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        self.state = self.inner(x).tanh()
        self.loss = (self.state * 3).mean()
        return self.state.sin()


class Reminded(nn.Module):
    """Uses what a module inside has kept."""

    def __init__(self, remembering: Remembering) -> None:
        super().__init__()
        self.remembering = remembering

    def forward(self, x: Any) -> Any:
        return self.remembering(x) * self.remembering.loss + self.remembering.state


class Borrowing(nn.Module):
    """Uses a tensor that the module around it was given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.lent: list[Any] = []

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.lent[0].sin()


class Lending(nn.Module):
    def __init__(self, borrowing: Borrowing) -> None:
        super().__init__()
        self.borrowing = borrowing

    def forward(self, x: Any, y: Any) -> Any:
        self.borrowing.lent = [y]
        return self.borrowing(x)


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(self.inner(x))


def grown(depth: int, choose: random.Random, outside: dict[str, Any]) -> nn.Module:
    def inner() -> nn.Module:
        return grown(depth - 1, choose, outside)

    if depth == 0:
        return choose.choice([nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH), nn.Hardtanh()])
    kind = choose.randrange(11)
    if kind == 0:
        return Residual(inner())
    if kind == 1:
        return Product(inner(), inner())
    if kind == 2:
        return Both(inner(), Product(inner(), inner()))
    if kind == 3:
        return Joined(Halves(inner()))
    if kind == 4:
        return Outside(inner(), outside)
    if kind == 5:
        return InPlace(nn.Sequential(inner(), nn.Linear(WIDTH, WIDTH)))
    if kind == 6:
        return Reshaped(nn.Linear(WIDTH, WIDTH))
    if kind == 7:
        return Twice(inner())
    if kind == 8:
        return Reminded(Remembering(inner()))
    if kind == 9:
        return Both(inner(), Lending(Borrowing(inner())))
    return nn.Sequential(*(inner() for _ in range(choose.randrange(1, 4))))


class Program:
    """A model that is grown from a number, with a step of training it."""

    def __init__(self, number: int) -> None:
        choose = random.Random(number)
        torch.manual_seed(number)
        self.outside: dict[str, Any] = {"leaf": torch.randn(4, WIDTH, requires_grad=True)}
        self.model = nn.Sequential(*(grown(choose.randrange(1, 4), choose, self.outside) for _ in range(3)))
        self.data = torch.randn(4, WIDTH, requires_grad=choose.random() < 0.5)

    def step(self) -> None:
        first = nn.functional.linear(self.data, self.outside["leaf"][:, :].T @ self.outside["leaf"])
        self.outside["first"] = first.cos()
        self.model(self.data if self.data.requires_grad else first).square().sum().backward()


def gradients_of_copies(program: Program) -> dict[str, list[Any]]:
    """The gradients of the inputs of each call, by the name of its record."""
    copies: dict[str, list[Any]] = {}
    counts: dict[str, int] = {}

    def watch(base: str, module: nn.Module) -> None:
        forward = module.forward

        def with_copies(*args: Any) -> Any:
            number = counts.get(base, 0)
            counts[base] = number + 1
            args = tuple(value * 1 for value in args)
            for value in args:
                if value.requires_grad:
                    value.retain_grad()
            copies[f"{base}.backward.{number}"] = list(args)
            return forward(*args)

        module.forward = with_copies

    for path, module in program.model.named_modules():
        if path:
            watch(f"Module.{path}.{type(module).__name__}", module)
    program.step()
    return {name: [value.grad for value in args] for name, args in copies.items()}


@pytest.mark.parametrize("number", range(60))
def test_inputs_of_nested_modules_have_what_flows_through_each_alone(runs: Any, number: int) -> None:
    expected = gradients_of_copies(Program(number))
    program = Program(number)
    debugger = runs.new(level="L0")
    debugger.start(program.model)
    program.step()
    debugger.stop()
    data = runs.read().data
    compared = 0
    for name, gradients in expected.items():
        entries = data[name]["output"]
        assert len(entries) == len(gradients), name
        for entry, gradient in zip(entries, gradients):
            if gradient is None:
                assert entry is None, name
                continue
            assert entry["shape"] == list(gradient.shape)
            norm = gradient.norm().item()
            assert entry["Norm"] == pytest.approx(norm, rel=1e-4, abs=1e-6), name
            # That of what a LayerNorm sends on is zero but for rounding.
            assert entry["Mean"] == pytest.approx(gradient.mean().item(), rel=1e-3, abs=1e-4 * norm + 1e-6), name
            compared += 1
    assert compared >= 3


class Passing(nn.Module):
    """Returns an input as it came, before or after something made of the other one."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first

    def forward(self, x: Any, y: Any) -> tuple[Any, Any]:
        return (x, y * 3) if self.first else (y * 3, x)


class Around(nn.Module):
    """`Passing` with something between the two inputs."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.between = nn.Tanh()
        self.passing = Passing(first)

    def forward(self, x: Any) -> Any:
        one, other = self.passing(x, self.between(x))
        return one + other


@pytest.mark.parametrize("leaf", [False, True], ids=["made", "leaf"])
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
def test_an_input_returned_as_it_came_costs_the_other_results_nothing(runs: Any, first: bool, leaf: bool) -> None:
    model = nn.Sequential(Around(first))
    debugger = runs.new(level="L0")
    debugger.start(model)
    x = torch.zeros(2, requires_grad=True)
    for factor in (1, 2):
        model(x if leaf else x * 1).sum().mul(factor).backward()
    debugger.stop()
    dump = runs.read()
    for number, factor in enumerate((1, 2)):
        record = dump.data[f"Module.0.passing.Passing.backward.{number}"]
        # All the gradient of what was passed on, for there is only the one: 1 by itself, 3 by the other way.
        found = [entry["Max"] for entry in record["input"]]
        assert found == ([4.0 * factor, factor] if first else [factor, 4.0 * factor])
        assert [entry["Max"] for entry in record["output"]] == [4.0 * factor, 3.0 * factor]
        # It is complete late, and is nobody's parent.
        parents = {dump.tree[name] for name in dump.backward}
        assert f"Module.0.passing.Passing.backward.{number}" not in parents


def test_where_a_late_record_ends_a_scope_it_is_whole(runs: Any) -> None:
    model = nn.Sequential(Around(False))
    passing = "Module.0.passing.Passing.backward.0"
    debugger = runs.new(level="L0", scope=["Module.0.Around.forward.0", passing])
    debugger.start(model)
    model(torch.zeros(2, requires_grad=True) * 1).sum().backward()
    debugger.stop()
    record = runs.read().data[passing]
    assert [entry["Max"] for entry in record["input"]] == [1.0, 4.0]
    assert [entry["Max"] for entry in record["output"]] == [4.0, 3.0]


def test_a_kept_graph_with_a_late_gradient_has_each_pass_for_itself(runs: Any) -> None:
    model = nn.Sequential(Around(True))
    debugger = runs.new(level="L0")
    debugger.start(model)
    loss = model(torch.zeros(2, requires_grad=True) * 1).sum()
    loss.backward(retain_graph=True)
    (loss * 5).backward()
    debugger.stop()
    record = runs.read().data["Module.0.passing.Passing.backward.0"]
    assert [entry["Max"] for entry in record["input"]] == [20.0, 5.0]
    assert [entry["Max"] for entry in record["output"]] == [20.0, 15.0]
