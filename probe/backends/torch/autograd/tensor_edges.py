"""The gradient edges of tensors, views included."""

from __future__ import annotations

from typing import Any

import torch

from probe.backends.shared.autograd.graph import Edge
from probe.backends.torch import internals
from probe.backends.torch.autograd.views import Part, has_lost_its_node
from probe.backends.torch.originals import of_torch, own

_get_gradient_edge = of_torch(torch.autograd.graph.get_gradient_edge)


def gradient_edge(tensor: torch.Tensor) -> Edge:
    """The edge at which the gradient of a tensor that requires one arrives."""
    node = tensor.grad_fn
    if node is not None:
        return node, tensor.output_nr
    # Asking for a leaf's accumulation node takes a view of it, which needs autograd at work.
    with internals.without_function_modes(), torch.enable_grad():
        return _get_gradient_edge(tensor).node, 0


def edge_or_none(tensor: torch.Tensor) -> Edge | None:
    """`gradient_edge`, and ``None`` for a view that has no node any more."""
    if not own._is_view(tensor):
        return gradient_edge(tensor)
    try:
        return None if has_lost_its_node(tensor) else gradient_edge(tensor)
    except RuntimeError:
        return None  # made without recording of what was written to since: torch gives it no node again


def whole_of(tensor: torch.Tensor) -> Any:
    """The tensor that a view is of; any other tensor itself."""
    return tensor._base if own._is_view(tensor) else tensor


def part_of_whole(view: torch.Tensor) -> tuple[Any, int, Part]:
    """The gradient edge of the tensor that a view is of, with the view's part of it."""
    node, slot = gradient_edge(whole_of(view))
    return node, slot, Part.of(view)
