"""Views that recorded calls returned, and which of them are views of which."""

from __future__ import annotations

import weakref
from typing import Any, Callable, NamedTuple

import torch

from probe.backends.torch.autograd.strides import Extent, Layout
from probe.backends.torch.autograd.views import Part, WriteCounter
from probe.common.view_backward import ViewBackward

_replaying: Callable[[], bool] = getattr(torch._C, "_is_view_replay_enabled", lambda: False)
"""Whether torch makes new nodes of views by doing again what made them."""


class Ancestry(NamedTuple):
    """The noted views that a view is a view of."""

    number: int
    """Of the view itself: two calls can return the same."""
    parent: Ancestry | None
    complete: bool
    """Whether no other noted view can be among them."""

    def includes(self, number: int) -> bool | None:
        """Whether the view with that number is among them, or is the view itself."""
        one: Ancestry | None = self
        while one is not None:
            if one.number == number:
                return True
            one = one.parent
        return False if self.complete else None


class NotedView:
    """A view that a call returned."""

    __slots__ = (
        "__weakref__", "_recognizable", "_writes", "ancestry", "backward", "counter", "extent", "given", "layout",
        "node_number", "overlaps_itself", "slot", "tensor", "whole",
    )  # fmt: skip

    def __init__(
        self, view: torch.Tensor, made_of: Any, ancestry: Ancestry, counter: WriteCounter, backward: ViewBackward
    ) -> None:
        whole: Any = view._base
        own: Any = view.grad_fn
        self.tensor = weakref.ref(view)
        self.node_number: int = own._sequence_nr()
        self.layout = Layout.of(view)
        self.extent = Extent.of(self.layout)
        self.overlaps_itself = self.layout.overlaps_itself()
        self.whole = Layout.of(whole)
        """Of the tensor that it is of,"""
        self.slot: int = whole.output_nr
        """which is this output of its own node."""
        self._recognizable = self.layout[3:] == self.whole[3:] and not self.overlaps_itself
        self.given = None if made_of is None else Layout.of(made_of)
        """Of the tensor that the call was given and made a view of."""
        self.ancestry = ancestry
        self.counter = counter
        self._writes = counter.writes()
        self.backward = backward

    def writes_since(self) -> int:
        """To its tensor, and recorded or not."""
        return self.counter.writes() - self._writes

    def has_recognizable_nodes(self) -> bool:
        """Whether a new node of it can be known by its layout, and a gradient of it laid into one of the tensor."""
        return self._recognizable and not _replaying()

    def part(self, whole: torch.Tensor) -> Any:
        """Of a gradient of the tensor."""
        return Part.between(self.layout, self.whole)(whole)

    def laid_out(self, layout: Layout, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient of the view from one of a part of it that lies as `layout`."""
        if layout == self.layout:
            return gradient.clone()
        first, end = self.extent.first, self.extent.end
        around = torch.zeros(end - first, dtype=gradient.dtype, device=gradient.device)
        around.as_strided(layout.size, layout.stride, layout.offset - first).copy_(gradient)
        return around.as_strided(self.layout.size, self.layout.stride)

    def of_given(self, gradient: torch.Tensor) -> Any:
        """The gradient of what the call was given, through the view alone; ``None`` where it was given nothing."""
        if self.given is None:
            return None
        size, stride, dtype = self.whole.size, self.whole.stride, self.whole.dtype
        whole = torch.empty_strided(size, stride, dtype=dtype, device=gradient.device).zero_()
        self.part(whole).copy_(gradient)
        return Part.between(self.given, self.whole)(whole)
