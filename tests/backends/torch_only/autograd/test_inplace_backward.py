"""Operations in place lose no backward record, and the records hold the gradients of the mathematics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


class Net(nn.Module):
    """A program over a convolution, batch normalization and an activation in place."""

    def __init__(self, program: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.program = program

    def forward(self, x: Any) -> Any:
        return self.program(self, x)


def activation_after_normalization(net: Any, x: Any) -> Any:
    return net.act(net.norm(net.conv(x)))


def activation_after_convolution(net: Any, x: Any) -> Any:
    return net.norm(net.act(net.conv(x)))


def sum_on_an_output(net: Any, x: Any) -> Any:
    y = net.norm(net.conv(x))
    y += x
    return net.act(y)


def several_on_an_output(net: Any, x: Any) -> Any:
    y = net.conv(x)
    y.add_(1).mul_(2)
    F.leaky_relu_(y)
    return y


def on_a_slice(net: Any, x: Any) -> Any:
    y = net.norm(net.conv(x))
    y[:, :2].mul_(3)
    return y


def on_a_flat_view(net: Any, x: Any) -> Any:
    y = net.conv(x)
    y.view(-1).mul_(3)
    return net.norm(y)


def on_a_view_and_its_whole(net: Any, x: Any) -> Any:
    y = net.conv(x)
    view = y.transpose(1, 2)
    view.mul_(3)
    return view.sum() + (y * y).sum()


def on_an_input_of_the_program(net: Any, x: Any) -> Any:
    y = x * 2
    y -= 1
    return net.act(net.conv(y))


PROGRAMS = [
    activation_after_normalization, activation_after_convolution, sum_on_an_output, several_on_an_output, on_a_slice,
    on_a_flat_view, on_a_view_and_its_whole, on_an_input_of_the_program,
]  # fmt: skip


def run(net: Any) -> tuple[list[bytes], Any]:
    x = torch.linspace(-1, 1, 72).reshape(2, 4, 3, 3).requires_grad_()
    out = net(x)
    out.backward(torch.ones_like(out))
    values = [out, x.grad, *(p.grad for p in net.parameters() if p.grad is not None), *net.buffers()]
    return [value.detach().numpy().tobytes() for value in values], x.grad


@LEVELS
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.replace("_", " "))
def test_each_call_has_its_backward_and_the_program_its_bits(runs: Any, level: str, program: Any) -> None:
    expected, _ = run(Net(program))
    net, debugger = Net(program), runs.new(level=level)
    debugger.start(net)
    found, _ = run(net)
    debugger.stop()
    assert found == expected
    dump = runs.read()
    # The counter of batches takes no gradient.
    called = {
        name.rsplit(".forward", 1)[0] if name.startswith("Module") else name.replace(".forward", "")
        for name in dump.forward
        if (dump.data[name]["output"][0] or {}).get("requires_grad")
    }
    backward = {
        name.rsplit(".backward", 1)[0] if name.startswith("Module") else name.replace(".backward", "")
        for name in dump.backward
    }
    if program is on_a_view_and_its_whole:
        # Nothing arrives at the node of a view that was written to after the call.
        called.discard("Tensor.transpose.0")
    assert called == backward and called
    assert [name for name in dump.backward if None in dump.data[name]["input"]] == []


def loaded(dump: Any, entry: Any) -> Any:
    return torch.load(dump.folder / "dump_tensor_data" / entry["data_name"], weights_only=True)


@pytest.mark.parametrize("form", ["slice", "transposed", "slice of a transposed gradient"])
def test_gradients_of_an_operation_on_a_view_are_those_of_its_part(runs: Any, form: str) -> None:
    weights = torch.linspace(-1, 1, 12).reshape(3, 4)

    def program(x: Any) -> Any:
        y = x + 1
        (y[:, 1:3] if form.startswith("slice") else y.t()).mul_(3)
        # The gradient of y is laid out as the transposed one.
        return (y.t() * weights.t()).sum() if "gradient" in form else (y * weights).sum()

    debugger = runs.new(level="L1", task="tensor")
    x = torch.ones(3, 4, requires_grad=True)
    debugger.start()
    program(x).backward()
    debugger.stop()
    dump = runs.read()
    record = dump.data["Tensor.mul_.0.backward"]
    arriving = weights[:, 1:3] if form.startswith("slice") else weights.t()
    assert torch.equal(loaded(dump, record["input"][0]), arriving)
    assert torch.equal(loaded(dump, record["output"][0]), arriving * 3)
    assert x.grad is not None and torch.equal(loaded(dump, dump.data["Tensor.__add__.0.backward"]["input"][0]), x.grad)
