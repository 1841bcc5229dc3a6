"""The way in which tensors lie in memory, and whether two of them share any of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from probe.backends.torch.originals import own

_ADDRESS = 1 << 20
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
