"""The gradient of what lay in a view, put together from what arrives after its memory, or some near it, was written to.

The writes to a tensor that views are of cut the time after a view was made into stretches. What is computed from the
view in one of them arrives at the node that torch gave the view then. A write elsewhere in the tensor leaves the view
as it is, so its gradient goes on to the stretch before. A write to memory of the view ends that: the gradient that such
a write sends on for the view's part, through which all later uses of that memory go, is that of what lay there before.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Callable

import torch

from probe.backends.torch.autograd.strides import Layout
from probe.backends.torch.noted_views import NotedView
from probe.backends.torch.tensors.describe import is_wrapped


class Write(enum.Enum):
    """What a write did to the memory of a view."""

    ELSEWHERE = enum.auto()
    HERE = enum.auto()
    UNKNOWN = enum.auto()


class LaterGradient:
    """That of one view, in one backward pass.

    Each node of a stretch leads to that of the write before it, so it has run when that write sends its gradient on.
    """

    def __init__(self, view: NotedView, writes: Sequence[Write], lost: bool) -> None:
        self._view = view
        self._writes = writes
        """To the tensor that the view is of, since it was made; one to the view itself is the last."""
        self._used: dict[int, torch.Tensor] = {}
        """What has arrived at nodes that the view had, by the number of writes before."""
        self._gradient: torch.Tensor | None = None
        """Of the view, from the writes that have run and the stretches after them."""
        self._known = True
        """Whether it is all that there is of it."""
        self._lost = lost
        """Whether that cannot be known."""
        self._wrapped: Any = None
        self._told = False

    def used(self, stretch: int, layout: Layout, gradient: Any) -> None:
        """`gradient` has arrived at a node that the view, or one in it that lies as `layout`, had after some writes."""
        self._take(self._add, stretch, layout, gradient)

    def written(self, at: int, before: Any, after: Any) -> None:
        """A write, by the number of those before it, has sent `before` on, where `after` has arrived."""
        self._take(self._go_on, at, before, after)

    def _take(self, function: Callable[..., None], *args: Any) -> None:
        try:
            if not self._lost:
                function(*args)
        except BaseException:
            self._lost = True
            raise
        finally:
            if not self._told:
                self._told = True
                self._view.backward.written(self._view.node_number, self._parts)

    def _add(self, stretch: int, layout: Layout, gradient: Any) -> None:
        if not self._is_wrapped(gradient):
            self._used[stretch] = _sum(self._used.get(stretch), self._view.laid_out(layout, gradient))

    def _go_on(self, at: int, before: Any, after: Any) -> None:
        if self._is_wrapped(before):
            return
        self._add_from(at + 1)
        if self._view.overlaps_itself or before.is_meta:
            self._lost = True
            return
        part = self._view.part(before)
        # Where the gradient of the view's part is another one than after the write, the write was to that part.
        here = self._writes[at] is Write.HERE or after is None or not _same(part, self._view.part(after))
        # Where it is the same, it makes no difference whether it was, if nobody but the view has used the part since.
        self._known = here or (self._known and _close(part, self._gradient))
        if here or self._gradient is None:
            self._gradient = part.clone()

    def _add_from(self, stretch: int) -> None:
        for later in [number for number in self._used if number >= stretch]:
            self._gradient = _sum(self._gradient, self._used.pop(later))

    def _is_wrapped(self, gradient: Any) -> bool:
        if is_wrapped(gradient):
            self._wrapped = gradient
        return self._wrapped is not None

    def _parts(self) -> tuple[Any, Any] | None:
        """Implements `probe.common.view_backward.Parts`."""
        if self._wrapped is not None:
            return self._wrapped, self._wrapped  # has no statistics in any case
        self._add_from(0)
        if self._gradient is None or self._lost or not self._known:
            return None
        gradient, self._gradient = self._gradient, None
        return gradient, self._view.of_given(gradient)


def _sum(one: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    return other if one is None else one + other


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the numbers are; what is no number is the same as itself."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _close(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether two sums of the same gradients are, in any order; ``None`` is the sum of none."""
    if other is None:
        return not bool(one.any())
    return torch.allclose(one, other, rtol=4 * torch.finfo(one.dtype).eps, atol=0, equal_nan=True)
