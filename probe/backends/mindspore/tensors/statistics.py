"""Max, Min, Mean, Norm and sketch of a tensor, or a checksum of its bytes.

float16 and bfloat16 are rounded to the tensor's own type, as the contract says, or computed in float32 at high
precision; float32 and float64 are computed in themselves, and integers in float64. In host memory a tensor is a numpy
array without any copy, and numpy does in microseconds what a MindSpore operation takes milliseconds for (4096
elements: 14 us, and 2 ms and more); `probe.backends.shared.reduction`, where it is compiled, in fewer of them.
On other devices the operations run there and wait for one common transfer.
"""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from probe.backends.mindspore.internals import no_grad
from probe.backends.mindspore.tensors import dtypes, sketches
from probe.backends.shared import checksums, nonfinite, reduction
from probe.common.interfaces import Entry, StatisticsMode
from probe.common.numerics.formats import Kind

KEYS = ("Max", "Min", "Mean", "Norm")
_HALF = frozenset((ms.float16, ms.bfloat16))
_FLOATING = frozenset(dtype for dtype, line in dtypes.FORMATS.items() if line.kind is Kind.FLOAT)
_FLOAT8 = frozenset(dtype for dtype in _FLOATING if dtypes.FORMATS[dtype].bits == 8)
_COMPLEX = frozenset(dtype for dtype, line in dtypes.FORMATS.items() if line.is_complex)
_NUMBERS = frozenset(dtype for dtype, line in dtypes.FORMATS.items() if line.kind is not Kind.TEXT)
_NO_OVERFLOW = 1e28
"""No sum of float32 values within this overflows, so that numpy has nothing to warn of; silencing it takes 2 us."""

Array = sketches.Array


class Statistics:
    """Computes statistics and keeps those that are still on a device."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Entry, tuple[Any, ...], tuple[Any, ...]]] = []
        self._sketches: list[tuple[Entry, Tensor]] = []
        self._on_host: bool = ms.get_context("device_target") == "CPU"

    def fill(self, entry: Entry, tensor: Tensor, summary: StatisticsMode) -> None:
        """Put the four statistics of a tensor of any shape and type into `entry`, now or at `resolve`."""
        if self._on_host:
            array = to_array(tensor)
            *four, sketch = summarize(array, summary.high_precision, summary.sketch)
            entry.update(zip(KEYS, four))
            if sketch is not None:
                entry["sketch"] = sketch
            if summary.nonfinite and nonfinite.shows(entry) and array.dtype.kind != "c":
                # numpy has no bfloat16 of its own.
                wide = array if array.dtype.kind == "f" else array.astype(np.float32)
                nonfinite.add(entry, *nonfinite.counted(wide))
            return
        entry.update(dict.fromkeys(KEYS))
        counted = summary.nonfinite and tensor.dtype in _FLOATING
        with no_grad():
            results = on_device(tensor, summary.high_precision)
            finite = finite_on_device(tensor) if counted and results is not None else ()
        if results is not None:
            self._waiting.append((entry, results, finite))

    def sketch(self, entry: Entry, tensor: Tensor) -> None:
        """Put the sketch of a tensor of any shape and type into `entry` if it is not there, now or at `resolve`."""
        if "sketch" in entry or tensor.dtype not in _NUMBERS:
            return
        if self._on_host or 0 in tensor.shape:
            entry["sketch"] = sketches.packed(to_array(tensor))
            return
        with no_grad():
            self._sketches.append((entry, sketches.on_device(tensor)))

    def pending(self) -> int:
        return len(self._waiting) + len(self._sketches)

    def resolve(self) -> None:
        """Fill in every waiting entry, with one transfer for each type."""
        waiting, self._waiting = self._waiting, []
        groups: dict[str, list[tuple[dict[Any, Any], Any, Any]]] = {}
        counted: list[tuple[Entry, dict[int, Any]]] = []
        for entry, results, finite in waiting:
            for key, value in zip(KEYS, results):
                if value is not None:
                    groups.setdefault(str(value.dtype), []).append((entry, key, value))
            if finite:
                found: dict[int, Any] = {}
                counted.append((entry, found))
                for index, value in enumerate(finite):
                    groups.setdefault(str(value.dtype), []).append((found, index, value))
        with no_grad():
            for members in groups.values():
                values = to_array(ops.stack([value for _, _, value in members])).tolist()
                for (holder, key, _), value in zip(members, values):
                    holder[key] = value
        for entry, found in counted:
            if found[0]:
                nonfinite.add(entry, found[0], found[1], found[2])
        made, self._sketches = self._sketches, []
        with no_grad():
            for (entry, _), sketch in zip(made, sketches.fetched([sums for _, sums in made])):
                entry["sketch"] = sketch
        # The process may have been given another device since.
        self._on_host = ms.get_context("device_target") == "CPU"


def to_array(tensor: Tensor) -> Array:
    """The tensor as numpy sees it, not to be written to: on the CPU it is the tensor's own memory.

    bfloat16 comes in a type of its own where numpy is older than 2, and as float32 elsewhere; so does float8.
    """
    dtype = tensor.dtype
    if dtype in _FLOAT8:
        return tensor.astype(ms.float32).asnumpy()  # type: ignore[no-any-return]
    try:
        return tensor.asnumpy()  # type: ignore[no-any-return]
    except TypeError:
        if dtype != ms.bfloat16:
            raise
        # numpy 2 does not know the type that MindSpore registers for bfloat16.
        return _widened(tensor)


def _widened(tensor: Tensor) -> Array:
    """float32 values of a bfloat16 tensor, from its bytes: the upper half of a float32 is the bfloat16."""
    words = np.frombuffer(tensor.get_bytes(), dtype="<u2").astype("<u4") << 16
    return words.view("<f4").reshape(tensor.shape)


def as_saved(tensor: Tensor) -> Array:
    """The array that a tensor file and a checksum are made of: float32 where numpy has no such type."""
    array = to_array(tensor)
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


def summarize(array: Array, high_precision: bool, sketched: bool) -> tuple[Any, Any, Any, Any, bytes | None]:
    """Max, Min, Mean and Norm of an array as plain Python numbers, ``None`` for an empty one, and its packed sketch."""
    kind = array.dtype.kind
    if sketched and kind == "b" and array.ndim and array.size:
        largest, smallest, _, _, sketch = summarize(array.view(np.uint8), False, True)
        return bool(largest), bool(smallest), None, None, sketch
    if sketched and (kind == "c" or not array.ndim or not array.size):
        # The statistics of these come from other numbers than the sketch, or from none.
        return (*summarize(array, high_precision, False)[:4], sketches.packed(array))
    if array.size == 0:
        return None, None, None, None, None
    if kind == "b":
        return bool(array.any()), bool(array.all()), None, None, None
    if kind == "c":
        array = np.abs(array)
    if array.ndim == 0:
        value = array.item() if array.dtype.kind in "iuf" else float(array)
        return value, value, value, value, None
    found = _in_one_pass(array, high_precision, sketched)
    if found is None:
        return (*_in_passes(array, high_precision), sketches.packed(array) if sketched else None)
    return found


def _in_one_pass(
    array: Array, high_precision: bool, sketched: bool
) -> tuple[float, float, float, float, bytes | None] | None:
    kind = sketches.KINDS.get(array.dtype)
    if kind is None or reduction.reduce is None or not array.flags.c_contiguous:
        return None
    address = array.__array_interface__["data"][0]
    *four, sketch = reduction.reduce(address, (array.size,), (1,), kind, high_precision, sketched)
    largest, smallest, mean, norm = map(float, four)
    narrow = array.itemsize == 4 or array.dtype.kind == "V"
    if narrow and norm in (0.0, math.inf) and math.isfinite(largest) and math.isfinite(smallest):
        # The squares left the range of float32, where the norm itself may be well inside it.
        return (*_in_passes(array, high_precision), sketch)
    return largest, smallest, mean, norm, sketch


def _in_passes(array: Array, high_precision: bool) -> tuple[float, float, float, float]:
    kind, own = array.dtype.kind, array.dtype
    flat = array.reshape(-1)
    if kind in "iu":
        wide = flat.astype(np.float64)
        return float(flat.max()), float(flat.min()), float(wide.mean()), _norm(wide)
    if own.itemsize == 2:
        flat = flat.astype(np.float32)
        if not high_precision:
            with np.errstate(all="ignore"):
                rounded = np.array(_summary(flat), dtype=np.float32).astype(own).astype(np.float64).tolist()
            return rounded[0], rounded[1], rounded[2], rounded[3]
    return _summary(flat)


def _summary(flat: Array) -> tuple[float, float, float, float]:
    highest, lowest = float(np.maximum.reduce(flat)), float(np.minimum.reduce(flat))
    # NaN is in no range.
    if lowest > -_NO_OVERFLOW and highest < _NO_OVERFLOW:
        return highest, lowest, _mean(flat), _norm(flat)
    with np.errstate(all="ignore"):
        return highest, lowest, _mean(flat), _norm(flat)


def _mean(flat: Array) -> float:
    """The result of ``flat.mean()`` to the last bit, for float32 and float64, without numpy's Python around the sum."""
    mean = float(np.add.reduce(flat)) / flat.size
    return float(np.float32(mean)) if flat.itemsize == 4 else mean


def _norm(flat: Array) -> float:
    square = float(np.dot(flat, flat))
    if flat.itemsize != 4:
        return math.sqrt(square)
    if square > 3e38 or square < 1e-30:
        # The square left the range of float32, where the norm itself may be well inside it.
        wide = flat.astype(np.float64)
        square = float(np.dot(wide, wide))
    return float(np.float32(math.sqrt(square)))


def on_device(tensor: Tensor, high_precision: bool) -> tuple[Any, ...] | None:
    """The four statistics as tensors of no dimension that are still being computed; ``None`` for an empty tensor."""
    if 0 in tensor.shape:
        return None
    dtype = tensor.dtype
    if dtype == ms.bool_:
        return tensor.any(), tensor.all(), None, None
    if dtype in _COMPLEX:
        tensor = ops.abs(tensor)
    if tensor.ndim == 0:
        # A copy: the user may write to the tensor before it is read.
        value = tensor.copy()
        return value, value, value, value
    if dtype != ms.float32 and (high_precision or dtype not in _HALF):
        tensor = tensor.astype(ms.float32)
    flat = tensor.reshape(-1)
    return ops.max(flat)[0], ops.min(flat)[0], ops.mean(flat), ops.norm(flat)


def finite_on_device(tensor: Tensor) -> tuple[Any, Any, Any]:
    """The number of elements that are not finite, and the extremes of the others, as tensors still being computed."""
    flat = tensor.astype(ms.float32).reshape(-1)
    finite = ops.isfinite(flat)
    none, all_of_it = ops.full_like(flat, -math.inf), ops.full_like(flat, math.inf)
    count = ops.logical_not(finite).astype(ms.int32).sum()
    return count, ops.max(ops.select(finite, flat, none))[0], ops.min(ops.select(finite, flat, all_of_it))[0]


def _bytes(tensor: Tensor) -> Array:
    return np.ascontiguousarray(as_saved(tensor)).reshape(-1).view(np.uint8)


def crc32(tensor: Tensor) -> str:
    """CRC-32 of the raw bytes; bfloat16 and float8 count as the float32 values that a tensor file holds."""
    return checksums.crc32(_bytes(tensor))


def xor(tensor: Tensor) -> str:
    """Exclusive or of the same bytes."""
    return checksums.xor(_bytes(tensor))
