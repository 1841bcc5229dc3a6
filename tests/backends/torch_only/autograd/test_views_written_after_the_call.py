"""A view that a call returned and that is written to afterwards has its whole gradient in the record, or none.

Part of the gradient of such a view arrives at another gradient node than the one that the call made. The expected
gradients are those of a program that writes nothing in place, in which what the call returned is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_parts import Call

WEIGHT = torch.linspace(-1, 2, 36).reshape(6, 6)
CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "flatten": (lambda x: x.flatten(), "Tensor.flatten"),
    "transpose": (lambda x: x.t(), "Tensor.t"),
    "narrow": (lambda x: x.narrow(0, 1, 2), "Tensor.narrow"),
    "view of its own result": (lambda x: F.linear(x.reshape(2, 2, 6), WEIGHT, WEIGHT[0]), "Functional.linear"),
}


def use_and_multiply(y: Any) -> Any:
    before = y.exp()
    y.mul_(2)
    return before.sum() + y.sin().sum()


def multiply_between_uses(y: Any) -> Any:
    before = y.exp()
    y[:1].mul_(2)
    return before.sum() + (y * y).sum()


def write_without_recording(y: Any) -> Any:
    before = (y * 3).sum()
    with torch.no_grad():
        y.zero_()
    return before


def first_doubled(y: Any) -> Any:
    return torch.cat([y[:1] * 2, y[1:]])


USES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "not written": (lambda y: y.exp().sum(), lambda y: y.exp().sum()),
    "written": (lambda y: F.relu(y, inplace=True).sum(), lambda y: F.relu(y).sum()),
    "used and written": (use_and_multiply, lambda y: y.exp().sum() + (y * 2).sin().sum()),
    "a part written": (multiply_between_uses, lambda y: y.exp().sum() + (first_doubled(y) ** 2).sum()),
    "written without recording": (write_without_recording, lambda y: (y * 3).sum()),
}


def start() -> Any:
    return torch.linspace(-1, 1.5, 24).reshape(4, 6).requires_grad_()


def program(call: Any, use: Callable[[Any], Any]) -> list[Any]:
    x = start()
    loss = use(call(x * 2))
    loss.backward()
    return [loss.detach(), x.grad]


def loaded(dump: Any, name: str, field: str) -> Any:
    entry = dump.data.get(name, {field: [None]})[field][0]
    return entry and torch.load(dump.folder / "dump_tensor_data" / entry["data_name"], weights_only=True)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("call", CALLS)
def test_the_record_has_the_true_gradient_or_none(runs: Any, call: str, use: str) -> None:
    (function, api), (in_place, twin) = CALLS[call], USES[use]
    given = (start().detach() * 2).requires_grad_()
    returned = function(given).detach().requires_grad_()
    (arriving,) = torch.autograd.grad(twin(returned), returned)
    (leaving,) = torch.autograd.grad(twin(function(given)), given)
    bare = program(function, in_place)

    net, debugger = nn.ModuleList([Call(function)]), runs.new(level="mix", task="tensor")
    debugger.start(net)
    found = program(net[0], in_place)
    debugger.stop()
    assert all(torch.equal(one, other) for one, other in zip(found, bare)), "nothing changes"

    dump = runs.read()
    gradients = [
        (loaded(dump, f"{api}.0.backward", "input"), arriving),
        (loaded(dump, "Module.0.Call.backward.0", "input"), arriving),
        (loaded(dump, "Module.0.Call.backward.0", "output"), leaving),
    ]
    for gradient, expected in gradients:
        if use == "not written":
            assert gradient is not None
        if gradient is not None:
            torch.testing.assert_close(gradient, expected)


def test_a_view_that_was_used_before_it_was_written_to_has_none(runs: Any) -> None:
    """The node that the call made gets the gradient of `exp` alone."""
    net, debugger = nn.ModuleList([nn.Flatten(0)]), runs.new(level="mix")
    debugger.start(net)
    x = torch.ones(3, 4, requires_grad=True)
    y = net[0](x * 1)
    (y.exp() + y).sum().backward()
    debugger.stop()
    debugger.step()
    debugger.start(net)
    y = net[0](x * 1)
    other = y.exp()
    y.mul_(2)
    (other.sum() + y.sum()).backward()
    debugger.stop()
    first, second = runs.read(0).data, runs.read(1).data
    names = "Module.0.Flatten.backward.0", "Tensor.flatten.0.backward"
    assert all(first[name][field][0] is not None for name in names for field in ("input", "output"))
    assert all(second[name][field] == [None] for name in names for field in ("input", "output"))
