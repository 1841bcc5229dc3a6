"""Gradients of modules inside modules; those of inputs against an independent computation.

A gradient of an input counts what flows through the module alone. The reference run gives every module copies of its
inputs, of which nothing else takes a gradient, and keeps theirs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch_parts import collected, maxima

from probe.backends.shared import gradient_graph
from probe.backends.torch import tracker
from probe.backends.torch.gradient_graph import FreedInTurn

WIDTH = 6
needs_compiled = pytest.mark.skipif(tracker.compiled is None, reason="the compiled tracker is not built here")


class Part(nn.Module):
    """Computes with `function`, which takes this module and its inputs, and calls the modules ``a`` and ``b``."""

    def __init__(self, function: Callable[..., Any], a: nn.Module | None = None, b: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.a, self.b = function, a, b
        self.kept: list[Any] = []

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def halves(module: Any, x: Any) -> Any:
    y = module.a(x)
    return y[:, : WIDTH // 2], y.sin()[:, WIDTH // 2 :]


def joined(module: Any, x: Any) -> Any:
    left, right = module.a(x)
    return torch.cat((right, left), 1) if left.sum() > 0 else torch.cat((left, right), 1)


def remembering(module: Any, x: Any) -> Any:
    """Keeps what it has half-way, as models do with hidden states and auxiliary losses."""
    state = module.a(x).tanh()
    module.kept = [(state * 3).mean(), state]
    return state.sin()


def reminded(module: Any, x: Any) -> Any:
    """Uses what a module inside has kept."""
    return module.a(x) * module.a.kept[0] + module.a.kept[1]


def lending(module: Any, x: Any, y: Any) -> Any:
    """Has a module inside use a tensor that it was not given."""
    module.a.kept = [y]
    return module.a(x)


def product(one: nn.Module, other: nn.Module) -> nn.Module:
    """Of two modules, called with two inputs or with one twice."""
    return Part(lambda module, x, *y: module.a(x) * module.b(*(y or (x,))), one, other)


def both(first: nn.Module, second: nn.Module) -> nn.Module:
    """Calls a module of two inputs with what it was given and what it made of it."""
    return Part(lambda module, x: module.b(x, module.a(x)), first, second)


def grown(depth: int, choose: random.Random, outside: dict[str, Any]) -> nn.Module:
    def inner() -> nn.Module:
        return grown(depth - 1, choose, outside)

    if depth == 0:
        return choose.choice([nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH), nn.Hardtanh()])
    return choose.choice(
        [
            lambda: Part(lambda module, x: x + module.a(x), inner()),
            lambda: product(inner(), inner()),
            lambda: both(inner(), product(inner(), inner())),
            lambda: Part(joined, Part(halves, inner())),
            lambda: Part(lambda module, x: module.a(x) * outside["first"] + outside["leaf"], inner()),
            lambda: Part(
                lambda module, x: module.a(x).mul_(0.5).add_(x), nn.Sequential(inner(), nn.Linear(WIDTH, WIDTH))
            ),
            lambda: Part(lambda module, x: module.a(x.view(-1, 1, WIDTH)).view(-1, WIDTH), nn.Linear(WIDTH, WIDTH)),
            lambda: Part(lambda module, x: module.a(module.a(x)), inner()),
            lambda: Part(reminded, Part(remembering, inner())),
            lambda: both(inner(), Part(lending, Part(lambda module, x: module.a(x) * module.kept[0].sin(), inner()))),
            lambda: nn.Sequential(*(inner() for _ in range(choose.randrange(1, 4)))),
        ]
    )()


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


@pytest.fixture(params=[pytest.param("compiled", marks=needs_compiled), "in Python"], autouse=True)
def followed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever part follows the backwards."""
    if request.param == "in Python":
        monkeypatch.setattr(tracker, "compiled", None)


@pytest.fixture
def all_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walks of outer modules pass each module inside them that they may, however small it is."""
    monkeypatch.setattr(gradient_graph, "WORTH_NOTING", -(1 << 30))


@pytest.mark.sampled(least=20, each=False)
@pytest.mark.parametrize("number", range(60))
@pytest.mark.usefixtures("all_passed")
def test_inputs_of_nested_modules_have_what_flows_through_each_alone(runs: Any, number: int) -> None:
    expected = gradients_of_copies(Program(number))
    program = Program(number)
    data = collected(runs, program.model, program.step, "L0").data
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


@pytest.mark.usefixtures("all_passed")
def test_a_leaf_that_a_module_inside_uses_without_being_given_it_has_its_gradient(runs: Any) -> None:
    weight = torch.ones(WIDTH, requires_grad=True)
    using = Part(lambda module, x: (x * module.kept[0]).exp())
    model = nn.Sequential(Part(lending, Part(lambda module, x: module.a(x), using)))
    using.kept = [weight]

    def program() -> None:
        model[0](torch.zeros(2, WIDTH, requires_grad=True) + 1, weight).sum().backward()

    # The derivative of exp(1 w), over two rows.
    expected = pytest.approx([2.718282, 5.436564], abs=1e-5)
    assert maxima(collected(runs, model, program, "L0"), "Module.0.Part.backward.0", "output") == expected


def nested(depth: int) -> nn.Module:
    """A module with three nodes of its own at each depth."""
    if depth == 0:
        return nn.Tanh()
    return Part(lambda module, x: (module.a(x * 2) + x).sin(), nested(depth - 1))


def test_walks_grow_with_the_nodes_and_not_with_the_depth(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []
    monkeypatch.setattr(FreedInTurn, "all_seen", lambda _, nodes: walked.append(len(nodes)))
    models, sums = nn.ModuleList([nested(16), nested(32)]), []

    def program() -> None:
        for model in models:
            walked.clear()
            model(torch.ones(2, requires_grad=True) * 1)
            sums.append(sum(walked))

    collected(runs, models, program, "L0")
    # Walks over all that is inside see 3.9 times the nodes.
    assert 0 < sums[1] < 2.3 * sums[0]


def around(first: bool) -> nn.Module:
    """Something between the two inputs of a module that returns one of them as it came, as its first or last result."""

    def passing(module: Any, x: Any, y: Any) -> Any:
        return (x, y * 3) if first else (y * 3, x)

    def outer(module: Any, x: Any) -> Any:
        one, other = module.a(x, module.b(x))
        return one + other

    return nn.Sequential(Part(outer, Part(passing), nn.Tanh()))


NAME = "Module.0.a.Part.backward"


@pytest.mark.parametrize("leaf", [False, True], ids=["made", "leaf"])
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
def test_an_input_returned_as_it_came_costs_the_other_results_nothing(runs: Any, first: bool, leaf: bool) -> None:
    model, x = around(first), torch.zeros(2, requires_grad=True)

    def program() -> None:
        for factor in (1, 2):
            model(x if leaf else x * 1).sum().mul(factor).backward()

    dump = collected(runs, model, program, "L0")
    for number, factor in enumerate((1, 2)):
        # All the gradient of what was passed on, for there is only the one: 1 by itself, 3 by the other way.
        expected = [4.0 * factor, factor] if first else [factor, 4.0 * factor]
        assert maxima(dump, f"{NAME}.{number}", "input") == expected
        assert maxima(dump, f"{NAME}.{number}", "output") == [4.0 * factor, 3.0 * factor]
        # It is complete late, and is nobody's parent.
        assert f"{NAME}.{number}" not in {dump.tree[name] for name in dump.backward}


def test_where_a_late_record_ends_a_scope_it_is_whole(runs: Any) -> None:
    model, x = around(False), torch.zeros(2, requires_grad=True)
    scope = ["Module.0.Part.forward.0", f"{NAME}.0"]
    dump = collected(runs, model, lambda: model(x * 1).sum().backward(), "L0", scope=scope)
    assert maxima(dump, scope[1], "input") == [1.0, 4.0] and maxima(dump, scope[1], "output") == [4.0, 3.0]


def test_a_kept_graph_with_a_late_gradient_has_each_pass_for_itself(runs: Any) -> None:
    model, x = around(True), torch.zeros(2, requires_grad=True)

    def program() -> None:
        loss = model(x * 1).sum()
        loss.backward(retain_graph=True)
        (loss * 5).backward()

    dump = collected(runs, model, program, "L0")
    assert maxima(dump, f"{NAME}.0", "input") == [20.0, 5.0] and maxima(dump, f"{NAME}.0", "output") == [20.0, 15.0]
