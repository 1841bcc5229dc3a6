"""The tensors that a call was given, and which of them it wrote to in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from probe.backends.shared.autograd.graph import GradientEdge, Writes
from probe.backends.torch.autograd.strides import StridedLayout
from probe.backends.torch.autograd.tensor_edges import edge_or_none, gradient_edge, whole_of
from probe.backends.torch.autograd.views import WRITTEN, Part, can_be_cut, has_lost_its_node
from probe.backends.torch.autograd.written_region import written_region
from probe.backends.torch.originals import own

_Tensor = torch.Tensor


class CallInputs(list[GradientEdge]):
    """The gradient edges of a call's inputs, and what is needed to see afterwards which of them it wrote to."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self.before: list[tuple[Any, int]] = []
        """The gradient node of each of `tensors`, or of the one it is a view of, and the number of its output there."""
        self.others = [
            value for value in (*args, *kwargs.values()) if isinstance(value, _Tensor) and not value.requires_grad
        ]
        """Arguments that take no gradient, and will where something is written to them that does."""
        self.written_views: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> None:
        whole = whole_of(tensor)
        self.append(edge_or_none(tensor))
        self.tensors.append(tensor)
        self.before.append((whole.grad_fn, whole.output_nr))

    def writes(self) -> Writes | None:
        """The writes of the call in place; asked after the call."""
        tensors = self.tensors
        written, elsewhere = self._written()
        filled = [tensor for tensor in self.others if tensor.requires_grad and whole_of(tensor).grad_fn is not None]
        for at, edge in enumerate(self):
            if edge is None and at not in written:
                # Its node was made inside of the call, if the call used it.
                self[at] = edge_or_none(tensors[at])
        # A tensor used after the write has another node.
        again = [(at, edge_or_none(tensors[at])) for at in elsewhere]
        again = [(at, edge) for at, edge in again if edge is not None and edge != self[at]]
        if not written and not filled and not again:
            return None
        views = [at for at in written if own._is_view(tensors[at])]
        self.written_views = [tensor for tensor in (*(tensors[at] for at in views), *filled) if own._is_view(tensor)]
        before: list[tuple[int, GradientEdge]] = [
            (at, (*self.before[at], Part.of(tensors[at]))) for at in views if self.before[at][0] is not None
        ]
        now = [whole_of(tensor) for tensor in (*(tensors[at] for at in written), *filled)]
        return Writes([*before, *again], [gradient_edge(whole) for whole in now if whole.requires_grad])

    def _written(self) -> tuple[list[int], list[int]]:
        """The tensors that were written to, as far as the graph tells; and those of which only another part was."""
        changed = [at for at, tensor in enumerate(self.tensors) if whole_of(tensor).grad_fn is not self.before[at][0]]
        elsewhere = [at for at in changed if _is_only_write_elsewhere(self.tensors[at], self.before[at][0])]
        found = [at for at in changed if at not in elsewhere]
        if len(found) < 2:
            return found, elsewhere
        # One of several views of a tensor changes the node of it for all.
        wholes = [id(whole_of(self.tensors[at])) for at in found]
        shared = {at for at, whole in zip(found, wholes) if wholes.count(whole) > 1}
        direct = [at for at in shared if _written_last(self.tensors[at])]
        return [at for at in found if at not in shared or not direct or at in direct], elsewhere


def _is_only_write_elsewhere(view: torch.Tensor, before: Any) -> bool:
    """True if there was one write since the tensor of a view had the node `before`, to another part of it."""
    whole = whole_of(view)
    write: Any = whole.grad_fn
    if whole is view or write is None or not write.name().endswith(WRITTEN) or not can_be_cut(whole):
        return False
    if write.next_functions[0][0] is not before or _written_last(view):
        return False
    region = written_region(write, StridedLayout.of(whole))
    return region is not None and StridedLayout.of(view).overlaps(region) is False


def _written_last(tensor: torch.Tensor) -> bool:
    """True if the last write to the memory of `tensor` went through it and no other view."""
    if own._is_view(tensor) and has_lost_its_node(tensor):
        return False
    node: Any = tensor.grad_fn
    if node is None:
        return False  # detached
    if not own._is_view(tensor):
        return not node.name().endswith(WRITTEN)
    # torch makes the view's new node right after that of the write.
    return bool(node._sequence_nr() == whole_of(tensor).grad_fn._sequence_nr() + 1)
