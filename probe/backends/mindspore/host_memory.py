"""Statistics and sketch of a tensor in host memory, in one pass over it where it lies.

`asnumpy` takes 22 us, most of it in numpy, which reads the format of a buffer in Python, and makes a copy of a view by
an operation of 90 us (2.10.0) to 1.2 ms (2.7.2). The address takes half a microsecond, and waits for the values as
well. Elements of a view are added up in the order of the memory: Mean and Norm may differ from those of a copy in
their last bit, as they do with PyTorch.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Optional

import mindspore as ms
from mindspore import Tensor, ops
from typing_extensions import TypeAlias

from probe.backends.mindspore import internals
from probe.backends.mindspore.internals import HAS_NODES, is_contiguous, no_grad, storage_offset, strides_of
from probe.backends.shared import tensors
from probe.common.numerics.formats import TABLE

Summary: TypeAlias = tuple[Any, Any, Any, Any, Optional[bytes]]
"""Max, Min, Mean and Norm as plain Python numbers, ``None`` where there is none, and the packed sketch or ``None``."""

_KINDS = {getattr(ms, name): kind for name, kind in tensors.KINDS.items() if hasattr(ms, name)}
if tensors.KINDS:
    _KINDS[ms.bool_] = tensors.KINDS["uint8"]
_INTEGERS = frozenset(getattr(ms, name) for name in tensors.KINDS if "int" in name and hasattr(ms, name))
_SQUARES_LEAVE_RANGE = frozenset((ms.float32, ms.bfloat16))
"""Types whose sum of squares may be infinite or 0 in float32 while the norm is not."""
_BYTES = {getattr(ms, line.name): line.bits // 8 for line in TABLE if line.name in tensors.KINDS}
_BYTES[ms.bool_] = 1
"""The size of an element; a tensor of mindtorch does not tell."""
_ONE: tuple[int, ...] = (1,)

KNOWS_ADDRESSES = HAS_NODES and internals.address_of is not None and tensors.reduce is not None
"""True if one pass describes nearly every tensor: before 2.7.2 one that no operation has used may have no address."""


def in_one_pass(tensor: Tensor, high_precision: bool, sketched: bool) -> Summary | None:
    """The statistics of a tensor on the CPU, and its sketch if it is to be `sketched`.

    ``None`` where something else has to find them: without the compiled pass, of types it does not know, of a tensor
    without elements or whose address is not known, and where the sum of squares left the range of float32.
    """
    dtype, shape = tensor.dtype, tensor.shape
    kind = _KINDS.get(dtype)
    if kind is None or 0 in shape or tensors.reduce is None:
        return None
    address = _find_address()(tensor)
    if not address:
        return None
    axes: tuple[int, ...] = (math.prod(shape),)
    strides = _ONE
    if not is_contiguous(tensor):
        axes, strides = shape, tuple(strides_of(tensor))
    largest, smallest, mean, norm, sketch = tensors.reduce(address, axes, strides, kind, high_precision, sketched)
    if dtype is ms.bool_:
        return bool(largest), bool(smallest), None, None, sketch
    if not shape:
        return largest, largest, largest, largest, sketch
    if dtype in _INTEGERS:
        return float(largest), float(smallest), mean, norm, sketch
    if norm in (0.0, math.inf) and dtype in _SQUARES_LEAVE_RANGE and not _is_norm(largest, smallest, norm):
        return None
    return largest, smallest, mean, norm, sketch


def _is_norm(largest: float, smallest: float, norm: float) -> bool:
    """True if `norm`, 0 or infinite, is the norm of the elements and not what float32 made of it."""
    if norm:
        return not (math.isfinite(largest) and math.isfinite(smallest))
    # Of zeros with a sign the mean has one, which sums that begin with 0 lose.
    return largest == smallest == 0.0 and math.copysign(1.0, largest) > 0


# --- addresses


@functools.cache
def _find_address() -> Callable[[Tensor], int]:
    """The function that gives the address of the first element of a tensor, 0 where that is not known."""
    address_of = internals.address_of
    if address_of is None:
        return lambda tensor: 0
    if KNOWS_ADDRESSES or _counts_offset(address_of):
        return address_of

    def address_of_view(tensor: Tensor) -> int:
        # The others may have no address yet, which 2.7.0 logs as an error.
        offset: int = storage_offset(tensor)
        if not offset and is_contiguous(tensor):
            return 0
        return address_of(tensor) + offset * _BYTES[tensor.dtype]

    return address_of_view


def _counts_offset(address_of: Callable[[Tensor], int]) -> bool:
    """True if the address of a view is that of its first element, as from 2.7.1 on, and not of the whole tensor."""
    with no_grad():
        whole = Tensor([0, 1], ms.int32)
        return address_of(ops.narrow(whole, 0, 1, 1)) != address_of(whole)
