"""Copies of tensors on which a call gives the same bits as on the tensors themselves."""

from __future__ import annotations

import torch

from probe.backends.protocol import UnknownValue
from probe.backends.torch import internals
from probe.backends.torch.guards import alone

_ALIGNMENT = 64
"""Bytes. Libraries add in another order where memory begins elsewhere in a line of the cache."""
_MOST_GAPS = 4
"""A view into memory so many times its own size is copied without what lies between its elements."""


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own with the same values, dtype, device, strides and alignment, which takes no gradient.

    A view with wide gaps, and what has no strides, becomes contiguous where torch's ``clone`` makes it so.

    Raises:
        UnknownValue: it has no values.
    """
    if internals.is_transformed(tensor):
        raise UnknownValue("a tensor inside of a function transform (vmap, grad) has no values of its own")
    with alone():
        plain = tensor.detach()
        if plain.layout is not torch.strided or plain.is_quantized or type(plain) is not torch.Tensor:
            return plain.clone()
        if plain.is_conj() or plain.is_neg() or not plain.numel():
            return plain.clone()
        extent = 1 + sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride()))
        if extent > _MOST_GAPS * plain.numel():
            return plain.clone()
        # As memory, so that elements which share a place, as those of an expanded tensor do, share one again.
        memory = torch.as_strided(plain, (extent,), (1,), plain.storage_offset())
        width = plain.element_size()
        room = torch.empty(extent + _ALIGNMENT // width, dtype=plain.dtype, device=plain.device)
        start = (plain.data_ptr() - room.data_ptr()) % _ALIGNMENT // width
        room[start : start + extent].copy_(memory)
        return torch.as_strided(room, plain.shape, plain.stride(), start)
