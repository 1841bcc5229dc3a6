"""How tensors lie in memory, and whether two of them share a place in it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

_ADDRESS = 1 << 20
_EFFORT: Any = 10_000
"""Of finding out whether two tensors overlap, in steps of numpy."""


class Layout(NamedTuple):
    """How a tensor lies in memory; in items of it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conjugate: bool
    negative: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        offset = int(tensor.storage_offset())
        return cls(tensor.size(), tensor.stride(), offset, tensor.dtype, tensor.is_conj(), tensor.is_neg())

    def overlaps_itself(self) -> bool:
        """Whether two elements can lie in one place, as in what `expand` makes."""
        reach = 0
        for stride, size in sorted(zip(self.stride, self.size)):
            if size > 1:
                if stride <= reach:
                    return True
                reach += (size - 1) * stride
        return False


class Extent(NamedTuple):
    """A layout with what tells nearly all apart at once."""

    layout: Layout
    first: int
    """Item,"""
    end: int
    """and the one behind the last."""
    step: int
    """What all its items are multiples of away from the first."""

    @classmethod
    def of(cls, layout: Layout) -> Extent:
        first = layout.offset
        if 0 in layout.size:
            return cls(layout, first, first, 0)
        reach = [(size - 1) * stride for size, stride in zip(layout.size, layout.stride)]
        step = math.gcd(*(stride for size, stride in zip(layout.size, layout.stride) if size > 1))
        return cls(layout, first, first + 1 + sum(reach), step)

    def overlaps(self, other: Extent) -> bool | None:
        """Whether the two, of the same memory, share a place in it; ``None`` where that would take long to find out."""
        if self.layout.dtype is other.layout.dtype:
            if self.end <= other.first or other.end <= self.first:
                return False
            step = math.gcd(self.step, other.step)
            if step > 1 and (self.first - other.first) % step:
                return False  # as two columns
        try:
            return np.shares_memory(_places(self.layout), _places(other.layout), max_work=_EFFORT)
        except RuntimeError:  # numpy's TooHardError, which has had two places
            return None

    def can_lie_in(self, other: Extent) -> bool:
        """Whether this can be a view of the other, as far as that can be told at once."""
        if self.layout.dtype is not other.layout.dtype:
            return True
        small = math.prod(self.layout.size) <= math.prod(other.layout.size) or self.layout.overlaps_itself()
        return small and other.first <= self.first and self.end <= other.end


class _Memory:
    """Where a tensor would be, for numpy, which only compares addresses: there is nothing."""

    def __init__(self, layout: Layout) -> None:
        item = layout.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item}",
            "shape": tuple(layout.size),
            "strides": tuple(stride * item for stride in layout.stride),
            "data": (_ADDRESS + layout.offset * item, True),
        }


def _places(layout: Layout) -> Any:
    return np.asarray(_Memory(layout))
