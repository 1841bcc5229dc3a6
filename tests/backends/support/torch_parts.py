"""Modules and functions that several files of `torch_only` use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def gradients(model: Any) -> list[Any]:
    return [p.grad.clone() for p in model.parameters()]


def same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second))


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


def saved(runs: Any, name: str, field: str, index: int = 0) -> Any:
    """The tensor that a record of the first step has in its files, or ``None``."""
    entry = runs.read().data[name][field][index]
    return entry and torch.load(runs.read().folder / "dump_tensor_data" / entry["data_name"], weights_only=True)
