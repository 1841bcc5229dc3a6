"""The memory of a tensor: whether it is there, and its bytes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from probe.backends.torch.guards import beneath_transforms
from probe.backends.torch.originals import own

GIVEN_BACK = "its memory was given back, so it has no values now"
"""The reason why a tensor has no statistics."""


def whole(tensor: torch.Tensor) -> bool:
    """True if the memory of a dense tensor holds all of its elements.

    Frameworks take it away and leave the tensor there, sharded parameters and outputs that are computed again for
    example. Torch reads on behind its end all the same, which ends the process; the address says nothing, for that of
    a view is then its offset.
    """
    count = own.numel(tensor)
    if count and not own.is_contiguous(tensor):
        count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, own.stride(tensor)))
    there = own.untyped_storage(tensor).nbytes()
    end = (own.storage_offset(tensor) + count) * own.element_size(tensor)
    return bool(end <= there or not count or own._is_zerotensor(tensor))


class _LentMemory:
    """Lends numpy the memory of a tensor, which is kept for as long as the array is.

    In a quarter of the time of torch's ways to do that. After ``numpy()`` torch would also refuse to resize the memory
    for as long as it lives, as FSDP2 does all the time.
    """

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: torch.Tensor, address: int) -> None:
        self._tensor = tensor
        size = own.numel(tensor) * own.element_size(tensor)
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements' bytes in row-major order: one dimension, uint8; of a contiguous host tensor its own memory.

    The tensor must be `whole`.
    """
    address = own.data_ptr(tensor)
    if not address or not tensor.is_cpu or own.is_conj(tensor) or own.is_neg(tensor) or not own.is_contiguous(tensor):
        tensor = beneath_transforms(_in_order, tensor)
        address = own.data_ptr(tensor)
    return np.asarray(_LentMemory(tensor, address)) if address else np.zeros(0, np.uint8)


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    if own._is_zerotensor(tensor):
        tensor = own.clone(tensor)  # it has no memory, and is whole all the same
    return cast(torch.Tensor, own.cpu(own.contiguous(own.resolve_neg(own.resolve_conj(tensor)))))
