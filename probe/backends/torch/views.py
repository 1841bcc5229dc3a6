"""Gradient edges of tensors and views: memory layouts, writes in place, the written region, the inputs of a call.

Such an operation changes the tensor that the view is of. In the gradient graph torch makes it one node of that tensor,
which holds what was written. The view that was written through gets a new node, and any other view gets one when it is
used the next time; only uses of the view itself run through it. So the gradients of the operation are those of its part
of the whole tensor.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from probe.backends.shared.gradient_graph import Edge, GradientEdge, Writes
from probe.backends.torch import internals
from probe.backends.torch.guards import (
    beneath_transforms,
    skipped,
    unobserved,
    with_autograd_kernels,
    with_dispatch_modes,
)
from probe.backends.torch.internals import TorchDispatchMode
from probe.backends.torch.originals import functions, of_torch, own

_ADDRESS = 1 << 20
"""An address that stands for the first byte of a storage: any number that is aligned for all dtypes."""
_EFFORT: Any = 10_000
"""The most steps of numpy to find out whether two tensors overlap."""


class StridedLayout(NamedTuple):
    """The way in which a tensor lies in memory; strides and offset count items of it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conjugate: bool
    negative: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> StridedLayout:
        offset = int(own.storage_offset(tensor))
        return cls(own.size(tensor), own.stride(tensor), offset, tensor.dtype, own.is_conj(tensor), own.is_neg(tensor))

    def overlaps(self, other: StridedLayout) -> bool | None:
        """True if two tensors in one storage share memory; ``None`` where that would take long to find out."""
        try:
            return np.shares_memory(_addresses(self), _addresses(other), max_work=_EFFORT)
        except RuntimeError:  # numpy's TooHardError, which numpy 1 and 2 keep in different modules
            return None


class _NoMemory:
    """An array without memory at the address of a tensor, for numpy, which only compares addresses."""

    def __init__(self, layout: StridedLayout) -> None:
        item = layout.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item}",
            "shape": tuple(layout.size),
            "strides": tuple(stride * item for stride in layout.stride),
            "data": (_ADDRESS + layout.offset * item, True),
        }


def _addresses(layout: StridedLayout) -> Any:
    return np.asarray(_NoMemory(layout))


# --- views


WRITTEN = "CopySlices"
"""The end of the name of the node of a write through a view."""
_next_sequence_number = internals.next_sequence_number
_set_version = internals.set_version
_is_functorch_wrapped = internals.is_transformed
_transforms = internals.transforms
_count_dispatch_modes = internals.count_dispatch_modes
_tracing_state = internals.tracing_state


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
def empty_of(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # Kept for the process: not as a wrapper of the function transform that happens to be under way.
    empty: torch.Tensor = beneath_transforms(functools.partial(torch.empty, 0, dtype=dtype, device=device))
    return empty


def _alias_without_memory(tensor: torch.Tensor) -> torch.Tensor:
    alias: torch.Tensor = own.detach(tensor)
    alias.data = empty_of(tensor.dtype, tensor.device)
    return alias


class WriteCheck:
    """Tells whether the memory of a tensor was written to since this was made, and holds nothing of that memory."""

    __slots__ = ("_alias", "_version")

    def __init__(self, tensor: torch.Tensor, guards: bool = True) -> None:
        # An alias that autograd makes shares the version counter, also after it was given other memory.
        if guards:
            with with_autograd_kernels():
                self._alias = _alias_without_memory(tensor)
        else:
            self._alias = _alias_without_memory(tensor)
        self._version = self._alias._version

    def __call__(self) -> bool:
        return bool(self._alias._version != self._version)


def write_check(view: torch.Tensor) -> WriteCheck | None:
    """A check of the memory of `view`, ``None`` where there can be none: of what has no statistics either."""
    if view.layout is not torch.strided or view.is_nested or _is_functorch_wrapped(view):
        return None
    return WriteCheck(view)


def write_check_outside(view: torch.Tensor) -> WriteCheck | None:
    """`write_check` where autograd's kernels are at work, outside of `unobserved`: 9 us instead of 24."""
    if view.layout is not torch.strided or view.is_nested or _transforms() is not None:
        return write_check(view)
    # Guards are needed only where somebody would see the alias being made.
    return WriteCheck(view, _count_dispatch_modes() > 0 or _tracing_state() is not None)


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


# --- tensor edges


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


# --- written region


class _CutOut(Exception):
    """The node has the written part."""

    def __init__(self, part: torch.Tensor) -> None:
        self.part = part


class _UntilCutOut(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops at the copy of the written part that the operation would get."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import its compiler

    @skipped
    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.clone.default:
            raise _CutOut(args[0])
        return unobserved(functools.partial(func, **(kwargs or {})), *args)


def written_region(write: Any, whole: StridedLayout) -> StridedLayout | None:
    """The region written by the node `write`, in a tensor of layout `whole`; ``None`` if it is unknown."""
    gradient = functions.empty_strided(whole.size, whole.stride, dtype=whole.dtype, device="meta")
    try:
        with with_dispatch_modes(), _UntilCutOut():  # type: ignore[no-untyped-call]
            write(gradient)
    except _CutOut as found:
        part = StridedLayout.of(found.part)
        # The storage that torch computes with begins where the tensor does.
        return part._replace(offset=part.offset + whole.offset * whole.dtype.itemsize // part.dtype.itemsize)
    except RuntimeError:  # torch's about a graph that has been given back, which the backward will raise as well
        return None
    return None


# --- call inputs


_Tensor = torch.Tensor


class CallInputs(list[GradientEdge]):
    """The gradient edges of a call's inputs, and what is needed to see afterwards which of them it wrote to."""

    __slots__ = ("before", "others", "tensors", "written_views")

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
