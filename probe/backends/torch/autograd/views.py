"""The backward of operations that write in place into a view.

Such an operation changes the tensor that the view is of. In the gradient graph torch makes it one node of that tensor,
which holds what was written. The view that was written through gets a new node, and any other view gets one when it is
used the next time; only uses of the view itself run through it. So the gradients of the operation are those of its part
of the whole tensor.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import torch

from probe.backends.torch import internals
from probe.backends.torch.autograd.strides import StridedLayout
from probe.backends.torch.guards import beneath_transforms, with_autograd_kernels
from probe.backends.torch.originals import functions, own

WRITTEN = "CopySlices"
"""The end of the name of the node of a write through a view."""
_next_sequence_number = internals.next_sequence_number
_set_version = internals.set_version
_is_functorch_wrapped = internals.is_transformed


def can_be_cut(whole: torch.Tensor) -> bool:
    """True if `Part` can take a view's part out of gradients of `whole`."""
    return (
        type(whole) in (torch.Tensor, torch.nn.Parameter)
        and whole.layout is torch.strided
        and not whole.is_nested
        and not _is_functorch_wrapped(whole)
    )


def written_through(output: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Any:
    """The gradient node of the tensor that the view `output` is of, where the call wrote to it; else ``None``."""
    if not any(output is value for value in (*args, *kwargs.values())):
        return None
    node = output._base.grad_fn  # type: ignore[union-attr]
    return node if node is not None and node.name().endswith(WRITTEN) else None


def has_lost_its_node(view: torch.Tensor) -> bool:
    """True if the memory of `view` was written to since its gradient node was made, and torch has made no other yet.

    torch makes it when somebody asks, as the last one there is, and the engine goes by that order: if we were the one,
    sums of gradients could have other last bits. Nothing tells before asking. So where asking has made a node, it is
    taken back: torch is told that the node belongs to another version of the memory, and makes a new one the next time.
    """
    if view._version == 0:
        return False  # never written to
    # Without autograd's kernels torch would make the new node of some views without edges, and leave it so.
    with with_autograd_kernels():
        number = _next_sequence_number()
        try:
            view.grad_fn  # noqa: B018  (asked for)
        except RuntimeError:
            return True  # one of several views that one call made: torch gives it no node again
        if _next_sequence_number() == number:
            return False
        version = view._version
        _set_version(view, version + 1)
        try:
            view.grad_fn  # noqa: B018
        finally:
            _set_version(view, version)
    return True


@functools.cache
def _empty(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # Kept for the process: not as a wrapper of the function transform that happens to be under way.
    empty: torch.Tensor = beneath_transforms(functools.partial(torch.empty, 0, dtype=dtype, device=device))
    return empty


class WriteCheck:
    """Tells whether the memory of a tensor was written to since this was made, and holds nothing of that memory."""

    __slots__ = ("_alias", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        # An alias that autograd makes shares the version counter, also after it was given other memory.
        with with_autograd_kernels():
            self._alias: torch.Tensor = own.detach(tensor)
            self._alias.data = _empty(tensor.dtype, tensor.device)
        self._version = self._alias._version

    def __call__(self) -> bool:
        return bool(self._alias._version != self._version)


def write_check(view: torch.Tensor) -> WriteCheck | None:
    """A check of the memory of `view`, ``None`` where there can be none: of what has no statistics either."""
    if view.layout is not torch.strided or view.is_nested or _is_functorch_wrapped(view):
        return None
    return WriteCheck(view)


@dataclasses.dataclass(frozen=True)
class Part:
    """Takes a view's part out of a gradient of the tensor it is a view of."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """All three of the view, in items of it; the offset counts from the beginning of the whole."""
    whole: tuple[int, ...]
    strides: tuple[int, ...]
    """The strides of the whole tensor."""
    retyped: tuple[torch.dtype, bool, bool] | None
    """The dtype of a view that has another dtype than the whole, or that is conjugate or negative unlike the whole, and
    its two bits; else ``None``."""

    @classmethod
    def of(cls, view: torch.Tensor) -> Part:
        base: Any = view._base
        return cls.between(StridedLayout.of(view), StridedLayout.of(base))

    @classmethod
    def between(cls, view: StridedLayout, whole: StridedLayout) -> Part:
        retyped = None
        offset = whole.offset
        if view.dtype is not whole.dtype or view.conjugate or view.negative:
            retyped = view[3:]
            offset = offset * whole.dtype.itemsize // view.dtype.itemsize
        return cls(view.size, view.stride, view.offset - offset, whole.size, whole.stride, retyped)

    def __call__(self, gradient: Any) -> Any:
        if gradient is None:
            return None
        if own.stride(gradient) != self.strides or gradient.layout is not torch.strided:
            laid_out = functions.empty_strided(self.whole, self.strides, dtype=gradient.dtype, device=gradient.device)
            gradient = own.copy_(laid_out, gradient)
        if self.retyped is not None:
            return self._other(gradient, *self.retyped)
        return own.as_strided(gradient, self.size, self.stride, own.storage_offset(gradient) + self.offset)

    def _other(self, gradient: torch.Tensor, dtype: torch.dtype, conjugate: bool, negative: bool) -> torch.Tensor:
        """The part of a gradient as a tensor of `dtype` in the same memory, as `torch.view_as_real` makes one."""
        gradient = own.resolve_neg(own.resolve_conj(gradient))
        part: torch.Tensor = functions.empty(0, dtype=dtype, device=gradient.device)
        offset = own.storage_offset(gradient) * own.element_size(gradient) // own.element_size(part)
        own.set_(part, own.untyped_storage(gradient), offset + self.offset, self.size, self.stride)
        part = own.conj(part) if conjugate else part
        return cast(torch.Tensor, own.neg(part)) if negative else part
