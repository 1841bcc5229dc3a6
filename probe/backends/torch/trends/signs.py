"""The signature of a gradient for the probe of gradients: with numpy on the host, with torch on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from probe.backends.protocol import Signature
from probe.backends.shared.trends import signs
from probe.backends.torch import internals
from probe.backends.torch.guards import with_autograd_kernels
from probe.backends.torch.originals import functions, own

_BY_NUMPY = frozenset((torch.float16, torch.float32, torch.float64))
_WEIGHTS = (128, 64, 32, 16, 8, 4, 2, 1)
"""Values of the bits of a byte, the highest first, as numpy packs them."""


def signature(gradient: torch.Tensor, bounds: Sequence[float], checksum: bool, bits: bool) -> Signature | None:
    """See `probe.backends.protocol.Measurer.signature`."""
    if gradient.is_meta or gradient.is_quantized or gradient.is_nested or gradient.layout is not torch.strided:
        return None
    with with_autograd_kernels():
        tensor = own.detach(gradient)
        if tensor.dtype not in _BY_NUMPY:
            # numpy has no bfloat16; every value of it is one of float32.
            tensor = own.to(tensor, torch.float32)
        if tensor.is_cpu or not own.numel(tensor):
            return signs.signature(own.numpy(own.cpu(tensor)), bounds, checksum, bits)
        return _on_a_device(tensor, bounds, checksum, bits)


def _on_a_device(tensor: torch.Tensor, bounds: Sequence[float], checksum: bool, bits: bool) -> Signature:
    smallest, largest = functions.aminmax(tensor)
    numbers = [largest, smallest, internals.vector_norm(tensor, dtype=torch.float64)]
    if bounds:
        numbers += [own.sum(functions.le(tensor, bound)) for bound in bounds]
        numbers += [own.sum(functions.isnan(tensor)), own.sum(functions.eq(tensor, 0))]
    # One transfer for all.
    found = own.tolist(functions.stack([own.to(each, torch.float64) for each in numbers]))
    shares: list[float] = []
    if bounds:
        *below, nans, zeros = map(int, found[3:])
        shares = signs.interval_shares(below, own.numel(tensor), nans, zeros)
    # The bytes of all elements are needed for a checksum, an eighth of a byte for each for the signs.
    whole = signs.signature(own.numpy(own.cpu(tensor)), (), True, False).checksum if checksum else ""
    return Signature([*shares, *found[:3]], whole, _packed(tensor) if bits else b"")


def _packed(tensor: torch.Tensor) -> bytes:
    flags = own.to(own.reshape(functions.gt(tensor, 0), (-1,)), torch.uint8)
    missing = -own.numel(flags) % len(_WEIGHTS)
    if missing:
        flags = functions.cat((flags, functions.zeros(missing, dtype=torch.uint8, device=flags.device)))
    weights = functions.tensor(_WEIGHTS, dtype=torch.uint8, device=flags.device)
    octets = own.sum(functions.mul(own.reshape(flags, (-1, len(_WEIGHTS))), weights), 1, dtype=torch.uint8)
    packed: bytes = own.numpy(own.cpu(octets)).tobytes()
    return packed
