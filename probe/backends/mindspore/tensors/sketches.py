"""Sketches of tensors by MindSpore, on devices and, where the compiled pass does not make them, on the host.

`probe.common.numerics.sketch` is the definition. On a device nothing is read: some twenty operations are queued for
a tensor, whatever its size, and the sums of all tensors are fetched together. Signs are made once on the host and kept
on the device, a byte for each element of the largest tensor so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from probe.backends.shared import reduction
from probe.common.numerics import sketch as definition
from probe.common.numerics.sketch import LANES, LIMIT, MARKS, SHIFTED_ROWS

_PERIOD = SHIFTED_ROWS * LANES
"""Elements after which lanes begin again; signs do not."""
_MOST_SIGNS = _PERIOD << 8
"""Elements that are sketched at once on a device, 67 million."""

Array = np.ndarray[Any, Any]


def packed(array: Array) -> bytes:
    """The packed sketch of an array of numbers, of any shape and dtype."""
    if not array.size:
        return definition.NOTHING
    numbers = np.ascontiguousarray(array).reshape(-1)
    if numbers.dtype.kind == "c":
        numbers = numbers.view(numbers.real.dtype)
    elif numbers.dtype.kind == "b":
        numbers = numbers.view(np.uint8)
    kind = KINDS.get(numbers.dtype)
    if kind is None and numbers.dtype.kind == "V":
        numbers = numbers.astype(np.float32)
    if kind is None or reduction.reduce is None:
        return definition.sketch(numbers).packed()
    made = reduction.reduce(numbers.__array_interface__["data"][0], numbers.shape, (1,), kind, False, True)[4]
    assert made is not None
    return made


KINDS = {np.dtype(name): kind for name, kind in reduction.KINDS.items() if name != "bfloat16"}
"""The kinds of `reduction.reduce` by the dtypes of arrays."""
if "bfloat16" in reduction.KINDS:
    try:
        KINDS[Tensor([0.0], ms.bfloat16).asnumpy().dtype] = reduction.KINDS["bfloat16"]
    except TypeError:
        # numpy 2 does not know the type that MindSpore registers, and such arrays are float32.
        pass


def on_device(tensor: Tensor) -> Tensor:
    """64 sums, the number of excluded elements and eight marks, still being computed; shape ``[73]``, float32.

    Args:
        tensor: A tensor with at least one element.
    """
    # Functions throughout: the methods of a tensor are mindtorch's where that is used.
    if tensor.dtype in (ms.complex64, ms.complex128):
        tensor = ops.stack((ops.real(tensor), ops.imag(tensor)), -1)
    flat, elements = ops.cast(ops.reshape(tensor, (-1,)), ms.float32), math.prod(tensor.shape)
    total: Any = None
    for start in range(0, elements, _MOST_SIGNS):
        made = _part(ops.narrow(flat, 0, start, min(_MOST_SIGNS, elements - start)), start // LANES)
        total = made if total is None else ops.add(total, made)
    return total


def _part(part: Tensor, first_row: int) -> Tensor:
    size = math.prod(part.shape)
    kept = ops.less(ops.abs(part), LIMIT)
    left_out = ops.cast(ops.logical_not(kept), ms.float32)
    both = ops.stack((ops.select(kept, part, ops.zeros_like(part)), left_out))
    signs = ops.cast(ops.narrow(_signs(first_row, size), 0, 0, size), ms.float32)
    signed = ops.mul(both, signs)
    period = min(_PERIOD, -(-size // LANES) * LANES)
    if size % period:
        signed = ops.cat((signed, ops.zeros((2, -size % period), ms.float32)), 1)
    # Rows with the same shift come together first, then the columns are turned into lanes.
    summed = ops.sum(ops.reshape(signed, (2, -1, period)), 1)
    turned = ops.gather(summed, ops.narrow(_order(), 0, 0, period), 1)
    lanes, marks = ops.unstack(ops.sum(ops.reshape(turned, (2, -1, LANES)), 1))
    marks = ops.sum(ops.reshape(marks, (-1, MARKS)), 0)
    return ops.cat((lanes, ops.reshape(ops.sum(left_out), (1,)), marks))


_kept_signs: dict[int, Tensor] = {}
_kept_order: list[Tensor] = []


def _signs(first_row: int, size: int) -> Tensor:
    """At least `size` signs from `first_row` on."""
    known = _kept_signs.get(first_row)
    if known is None or known.shape[0] < size:
        rows = 1 << (-(-size // LANES) - 1).bit_length()
        known = _kept_signs[first_row] = Tensor(definition.signs(first_row, rows).reshape(-1))
    return known


def _order() -> Tensor:
    """The index of the element that comes to each lane of each row of a period."""
    if not _kept_order:
        rows = np.arange(SHIFTED_ROWS)[:, None]
        order = rows * LANES + (np.arange(LANES) ^ definition.shifts(0, SHIFTED_ROWS)[:, None])
        _kept_order.append(Tensor(order.reshape(-1).astype(np.int32)))
    return _kept_order[0]


def fetched(sums: Sequence[Tensor]) -> list[bytes]:
    """The packed sketches of what `on_device` made, with one transfer."""
    found = []
    for row in ops.stack(list(sums)).asnumpy() if sums else ():
        count = int(row[LANES])
        found.append(definition.Sketch(row[:LANES], count, row[LANES + 1 :] if count else None).packed())
    return found
