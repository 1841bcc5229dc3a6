"""The backward of a call is there also when what it returned is written to in place afterwards.

What `nn.Linear` makes of an input of three dimensions, and all that ends with a `transpose` or `view`, is a view of
another tensor. torch gives it another gradient node when it is written to, and none of its gradient arrives at the one
that the call had made. The expected gradients are those of the same program without writing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])
SHAPE = (2, 3, 4)
SCALE = torch.linspace(-2, 3, 24)
MASK = torch.tensor([[True, False, True], [False, False, True]])


class Maker(nn.Module):
    """Its result is a view of a tensor that it made."""

    def __init__(self, finish: Callable[[Any], Any]) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.eye(4) + 0.1), nn.Parameter(torch.ones(4))
        self.finish = finish

    def forward(self, x: Any) -> Any:
        return self.finish(F.linear(x, self.weight, self.bias))


MAKERS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda y: y,
    "transposed": lambda y: y.transpose(0, 1),
    "flattened": lambda y: y.flatten(),
    "a part": lambda y: y[1:, :2],
}


def set_some(y: Any) -> Any:
    y.flatten(0, 0)[0] = 5
    return y


# What is done to the result, and the same without writing.
WRITES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "nothing": (lambda y: y * 2, lambda y: y * 2),
    "activation": (lambda y: F.relu(y, inplace=True), torch.relu),
    "dropout": (lambda y: F.dropout(y, 1.0, inplace=True), lambda y: y * 0),
    "set": (set_some, lambda y: torch.cat([torch.full_like(y[:1], 5), y[1:]])),
    "several": (lambda y: y.mul_(3).add_(1).mul_(2), lambda y: (y * 3 + 1) * 2),
    "used before": (lambda y: (y.exp(), y.mul_(2)), lambda y: (y.exp(), y * 2)),
    "used on both sides": (lambda y: (y.view_as(y) * 3, y.mul_(2), y.sin()), lambda y: (y * 3, y * 2, (y * 2).sin())),
    "a view of it": (lambda y: (y[:1].mul_(2), y)[1], lambda y: torch.cat([y[:1] * 2, y[1:]])),
}


def loss_of(results: Any) -> Any:
    results = results if isinstance(results, tuple) else (results,)
    return sum((one.reshape(-1) * SCALE[: one.numel()]).sum() for one in results)


def saved(runs: Any, name: str, field: str, index: int = 0) -> Any:
    entry = runs.read().data[name][field][index]
    return entry and torch.load(Path(runs.read().folder, "dump_tensor_data", entry["data_name"]), weights_only=True)


@LEVELS
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("make", MAKERS)
def test_the_backward_has_the_gradient_of_a_program_that_writes_nothing(
    runs: Any, level: str, make: str, write: str
) -> None:
    def run(maker: Any, change: Callable[[Any], Any], expected: list[Any] | None = None) -> list[Any]:
        y = maker(torch.linspace(-1, 1, 24).reshape(SHAPE).requires_grad_())
        if expected is not None:
            y.register_hook(lambda gradient: expected.append(gradient.clone()))
        loss_of(change(y)).backward()
        return [parameter.grad for parameter in maker.parameters()]

    in_place, twin = WRITES[write]
    expected: list[Any] = []
    run(Maker(MAKERS[make]), twin, expected)
    bits = run(Maker(MAKERS[make]), in_place)
    maker = Maker(MAKERS[make])
    debugger = runs.new(level=level, task="tensor")
    debugger.start(nn.Sequential(maker))
    found = run(maker, in_place)
    debugger.stop()
    assert all(torch.equal(one, other) for one, other in zip(found, bits))
    if level != "L1":
        assert torch.allclose(saved(runs, "Module.0.Maker.backward.0", "input"), expected[0], rtol=1e-6)
    if level != "L0" and make == "linear":
        gradient = saved(runs, "Functional.linear.0.backward", "input")
        assert torch.allclose(gradient, expected[0], rtol=1e-6)
        # As without writing: what the last operation of the call gave on.
        assert saved(runs, "Functional.linear.0.backward", "output").numel() == gradient.numel()


@LEVELS
def test_each_layer_of_a_usual_network_has_its_backward(runs: Any, level: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Dropout(0.5, inplace=True))
    debugger = runs.new(level=level)
    debugger.start(model)
    for _ in range(2):
        model(torch.ones(SHAPE)).sum().backward()
    debugger.stop()
    modules = ["0.Linear", "1.ReLU", "2.Linear", "3.Dropout"]
    wanted = [f"Module.{name}.backward.{call}" for name in modules for call in range(2)]
    apis = [f"Functional.{name}.{call}.backward" for name in ("linear", "relu", "dropout") for call in range(2)]
    names = runs.read().names
    assert {*(wanted if level != "L1" else []), *(apis if level != "L0" else [])} <= {*names}
    assert len(names) == len({*names})


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_view_that_nobody_uses_has_no_gradient(runs: Any, level: str) -> None:
    class Attention(nn.Module):
        def forward(self, x: Any) -> Any:
            weights = torch.softmax(x, -1)
            return (weights * x).transpose(0, 1), weights.view(-1)

    model = nn.Sequential(Attention())
    debugger = runs.new(level=level)
    debugger.start(model)
    out, _ = model(torch.ones(SHAPE, requires_grad=True))
    out.mul_(2).sum().backward()
    debugger.stop()
    first, second = runs.read().data["Module.0.Attention.backward.0"]["input"]
    assert first["Max"] == first["Min"] == 2 and second is None


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_of_several_views_of_one_tensor_each_has_the_gradient_of_what_lay_in_it(runs: Any, level: str) -> None:
    class Halves(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x * 1
            return y.view(-1), y[:1]

    model = nn.Sequential(Halves())
    debugger = runs.new(level=level)
    debugger.start(model)
    whole, part = model(torch.ones(SHAPE, requires_grad=True))
    part.mul_(3)
    (whole.sum() + part.sum()).backward()
    debugger.stop()
    first, second = runs.read().data["Module.0.Halves.backward.0"]["input"]
    assert [first["Min"], first["Max"]] == [1, 6], "what was in the first row is used by both"
    assert [second["Min"], second["Max"]] == [6, 6]


@LEVELS
def test_a_graph_that_is_kept_runs_again(runs: Any, level: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    debugger = runs.new(level=level)
    debugger.start(model)
    loss = model(torch.ones(SHAPE)).relu_().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    debugger.stop()
    name = "Functional.linear.0.backward" if level == "L1" else "Module.0.Linear.backward.0"
    assert runs.read().names.count(name) == 1


@LEVELS
def test_the_memory_of_a_result_is_not_held(runs: Any, level: str) -> None:
    def holders(layer: Any) -> int:
        y = layer(torch.ones(SHAPE))
        count: int = torch._C._storage_Use_Count(y.untyped_storage()._cdata)
        return count

    expected = holders(nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4))
    debugger = runs.new(level=level)
    debugger.start(model)
    assert holders(model[0]) == expected
    debugger.stop()


@LEVELS
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("recorded", [False, True])
def test_writes_without_recording_leave_the_gradient(runs: Any, level: str, times: int, recorded: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    debugger = runs.new(level=level, task="tensor")
    debugger.start(model)
    y = model[0](torch.ones(SHAPE))
    loss = (y * 5).sum()
    for _ in range(times):
        with torch.no_grad():
            y.clamp_(-100, 100)
        loss = loss + (y * 7).sum()
    if recorded:
        loss = loss + y.mul_(3).sum()
    loss.backward()
    debugger.stop()
    name = "Functional.linear.0.backward" if level == "L1" else "Module.0.Linear.backward.0"
    assert set(saved(runs, name, "input").flatten().tolist()) == {5.0 + 7 * times + 3 * recorded}
