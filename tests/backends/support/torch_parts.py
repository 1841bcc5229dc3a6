"""Modules and functions that several files of `torch_only` use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def gradients(model: Any) -> list[Any]:
    return [p.grad.clone() for p in model.parameters()]


class Call(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        context.save_for_backward(x)
        return torch.mul(x, x) * x

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        (x,) = context.saved_tensors
        return torch.square(x) * 3 * gradient


def bits(*values: Any) -> list[Any]:
    """Values that are equal where every bit of every tensor in `values` is."""
    leaves = tree_leaves(values)
    return [
        (value.dtype, value.detach().contiguous().numpy().tobytes()) if isinstance(value, torch.Tensor) else value
        for value in leaves
    ]


def collected(runs: Any, model: Any, call: Callable[[], Any], level: str = "mix", **settings: Any) -> Any:
    """The dump of one step in which `call` is called."""
    debugger = runs.new(level=level, **settings)
    debugger.start(model)
    call()
    debugger.stop()
    return runs.read()


def neutral(runs: Any, make: Callable[[], Any], work: Callable[[Any], Any], level: str = "mix", **settings: Any) -> Any:
    """The dump of `work` on a model that `make` makes; the tool changes no bit of its result, which is asserted."""
    expected = bits(work(make()))
    model, found = make(), []
    dump = collected(runs, model, lambda: found.append(work(model)), level, **settings)
    assert bits(found) == expected
    return dump


def loaded(dump: Any, entry: Any) -> Any:
    """The tensor in the file of an entry; ``None`` for none."""
    return entry and torch.load(dump.folder / "dump_tensor_data" / entry["data_name"], weights_only=True)


def maxima(dump: Any, name: str, field: str) -> list[float]:
    return [entry["Max"] for entry in dump.data[name][field]]
