"""Copies of arguments and gradients on the host, and their way back."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Callable

import torch

from probe.backends.torch.originals import own


@dataclass(frozen=True)
class KeptTensor:
    """A tensor's values on the host, and what else it was."""

    values: torch.Tensor
    device: torch.device
    requires_grad: bool

    def again(self) -> torch.Tensor:
        """A new tensor with these values, where the other one was."""
        tensor: torch.Tensor = own.to(self.values, self.device, copy=True)
        if self.requires_grad:
            own.requires_grad_(tensor)
        return tensor


def kept(tensor: torch.Tensor) -> KeptTensor:
    """A copy of `tensor` that shares nothing with it."""
    values = own.to(own.detach(tensor), "cpu", copy=True)
    return KeptTensor(values, tensor.device, tensor.requires_grad)


def all_kept(value: Any) -> Any:
    """`value` with a copy in the place of each tensor; everything that is no container stays the same object."""
    known: dict[int, KeptTensor] = {}

    def keep(tensor: torch.Tensor) -> KeptTensor:
        if id(tensor) not in known:
            known[id(tensor)] = kept(tensor)
        return known[id(tensor)]

    return _mapped(value, torch.Tensor, keep)


def all_again(value: Any, made: list[torch.Tensor]) -> Any:
    """The way back from `all_kept`; the new tensors that take a gradient are added to `made`."""
    known: dict[int, torch.Tensor] = {}

    def again(tensor: KeptTensor) -> torch.Tensor:
        if id(tensor) not in known:
            new = known[id(tensor)] = tensor.again()
            if tensor.requires_grad:
                made.append(new)
        return known[id(tensor)]

    return _mapped(value, KeptTensor, again)


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        # A shallow copy keeps what else a mapping of a class of its own has.
        new = copy.copy(value)
        for key, item in value.items():
            new[key] = _mapped(item, kind, function)
        return new
    if type(value) is list:
        return [_mapped(item, kind, function) for item in value]
    if isinstance(value, tuple):
        items = [_mapped(item, kind, function) for item in value]
        return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
    return value
