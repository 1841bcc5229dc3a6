"""Max, Min, Mean, Norm and sketch of a tensor, or a checksum of its bytes.

float16 and bfloat16 are rounded to the tensor's own type, as the contract says, or computed in float32 at high
precision; float32 and float64 are computed in themselves, and integers in float64. In host memory a tensor is a numpy
array without any copy, and numpy does in microseconds what a MindSpore operation takes milliseconds for (4096
elements: 14 us, and 2 ms and more); `probe.backends.shared.tensors`, where it is compiled, in fewer of them.
On other devices the operations run there and wait for one common transfer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from probe.backends.mindspore.host_memory import Summary, in_one_pass
from probe.backends.mindspore.internals import no_grad
from probe.backends.shared import tensors
from probe.common.interfaces import Entry, StatisticsMode
from probe.common.numerics import sketch as definition
from probe.common.numerics.formats import TABLE, Format, Kind
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
    if kind is None or tensors.reduce is None:
        return definition.sketch(numbers).packed()
    made = tensors.reduce(numbers.__array_interface__["data"][0], numbers.shape, (1,), kind, False, True)[4]
    assert made is not None
    return made


KINDS = {np.dtype(name): kind for name, kind in tensors.KINDS.items() if name != "bfloat16"}
"""The kinds of `reduction.reduce` by the dtypes of arrays."""
if "bfloat16" in tensors.KINDS:
    try:
        KINDS[Tensor([0.0], ms.bfloat16).asnumpy().dtype] = tensors.KINDS["bfloat16"]
    except TypeError:
        # numpy 2 does not know the type that MindSpore registers, and such arrays are float32.
        pass


def sketch_on_device(tensor: Tensor) -> Tensor:
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
    """The packed sketches of what `sketch_on_device` made, with one transfer."""
    found = []
    for row in ops.stack(list(sums)).asnumpy() if sums else ():
        count = int(row[LANES])
        found.append(definition.Sketch(row[:LANES], count, row[LANES + 1 :] if count else None).packed())
    return found


# --- dtypes


_ATTRIBUTES = {"bool": "bool_", "int4": "qint4x2"}
"""Dtypes that MindSpore has under another name."""


def _attribute(line: Format) -> str:
    return _ATTRIBUTES.get(line.name, line.name)


# str() of a type gives the names of dumps in plain MindSpore, but mindtorch replaces it.
FORMATS: dict[Any, Format] = {
    getattr(ms, _attribute(line)): line for line in TABLE if line.mindspore and hasattr(ms, _attribute(line))
}
"""The format of each dtype that this MindSpore has."""
_BY_DUMPED: dict[str, Any] = {line.mindspore: dtype for dtype, line in FORMATS.items()}
_BY_PLAIN: dict[str, Any] = {line.name: dtype for dtype, line in FORMATS.items()}


def dtype_name(dtype: Any) -> str:
    """``Float32`` for ``mindspore.float32``, under every MindSpore and mindtorch."""
    found = FORMATS.get(dtype)
    return str(dtype).rpartition(".")[2] if found is None else found.mindspore


def dumped_dtype(name: str) -> Any | None:
    """The dtype that a dump calls `name`; ``None`` for no dtype of a tensor."""
    return _BY_DUMPED.get(name)


def plain_name(dtype: Any) -> str:
    """``float32`` for ``mindspore.float32``, ``bool`` for ``mindspore.bool_``."""
    found = FORMATS.get(dtype)
    return str(dtype).rpartition(".")[2].lower() if found is None else found.name


def plain_dtype(name: str) -> Any | None:
    """The dtype of a plain name; ``None`` for one that this MindSpore does not have."""
    return _BY_PLAIN.get(name)


# --- statistics


KEYS = ("Max", "Min", "Mean", "Norm")
_HALF = frozenset((ms.float16, ms.bfloat16))
_FLOATING = frozenset(dtype for dtype, line in FORMATS.items() if line.kind is Kind.FLOAT)
_FLOAT8 = frozenset(dtype for dtype in _FLOATING if FORMATS[dtype].bits == 8)
_COMPLEX = frozenset(dtype for dtype, line in FORMATS.items() if line.is_complex)
_NUMBERS = frozenset(dtype for dtype, line in FORMATS.items() if line.kind is not Kind.TEXT)
_NO_OVERFLOW = 1e28
"""No sum of float32 values within this overflows, so that numpy has nothing to warn of; silencing it takes 2 us."""


class Statistics:
    """Computes statistics and keeps those that are still on a device."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Entry, tuple[Any, ...], tuple[Any, ...]]] = []
        self._sketches: list[tuple[Entry, Tensor]] = []
        self.on_host: bool = ms.get_context("device_target") == "CPU"
        """True if tensors are in host memory."""

    def fill(self, entry: Entry, tensor: Tensor, summary: StatisticsMode) -> None:
        """Put the four statistics of a tensor of any shape and type into `entry`, now or at `resolve`."""
        if self.on_host:
            found = in_one_pass(tensor, summary.high_precision, summary.sketch)
            if found is None:
                found = summarize(to_array(tensor), summary.high_precision, summary.sketch)
            entry["Max"], entry["Min"], entry["Mean"], entry["Norm"], sketch = found
            if sketch is not None:
                entry["sketch"] = sketch
            if summary.nonfinite and tensors.shows(entry) and tensor.dtype not in _COMPLEX:
                array = to_array(tensor)
                # numpy has no bfloat16 of its own.
                wide = array if array.dtype.kind == "f" else array.astype(np.float32)
                tensors.add(entry, *tensors.counted(wide))
            return
        entry.update(dict.fromkeys(KEYS))
        counted = summary.nonfinite and tensor.dtype in _FLOATING
        with no_grad():
            results = on_device(tensor, summary.high_precision)
            finite = finite_on_device(tensor) if counted and results is not None else ()
        if results is not None:
            self._waiting.append((entry, results, finite))

    def sketch(self, entry: Entry, tensor: Tensor) -> None:
        """Put the sketch of a tensor of any shape and type into `entry`, now or at `resolve`."""
        if tensor.dtype not in _NUMBERS:
            return
        if self.on_host or 0 in tensor.shape:
            entry["sketch"] = packed(to_array(tensor))
            return
        with no_grad():
            self._sketches.append((entry, sketch_on_device(tensor)))

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
                tensors.add(entry, found[0], found[1], found[2])
        made, self._sketches = self._sketches, []
        with no_grad():
            for (entry, _), sketch in zip(made, fetched([sums for _, sums in made])):
                entry["sketch"] = sketch
        # The process may have been given another device since.
        self.on_host = ms.get_context("device_target") == "CPU"


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


def summarize(array: Array, high_precision: bool, sketched: bool) -> Summary:
    """Max, Min, Mean and Norm of an array as plain Python numbers, ``None`` for an empty one, and its packed sketch."""
    kind = array.dtype.kind
    if sketched and kind == "b" and array.ndim and array.size:
        largest, smallest, _, _, sketch = summarize(array.view(np.uint8), False, True)
        return bool(largest), bool(smallest), None, None, sketch
    if sketched and (kind == "c" or not array.ndim or not array.size):
        # The statistics of these come from other numbers than the sketch, or from none.
        return (*summarize(array, high_precision, False)[:4], packed(array))
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
        return (*_in_passes(array, high_precision), packed(array) if sketched else None)
    return found


def _in_one_pass(
    array: Array, high_precision: bool, sketched: bool
) -> tuple[float, float, float, float, bytes | None] | None:
    kind = KINDS.get(array.dtype)
    if kind is None or tensors.reduce is None or not array.flags.c_contiguous:
        return None
    address = array.__array_interface__["data"][0]
    *four, sketch = tensors.reduce(address, (array.size,), (1,), kind, high_precision, sketched)
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
    return tensors.crc32(_bytes(tensor))


def xor(tensor: Tensor) -> str:
    """Exclusive or of the same bytes."""
    return tensors.xor(_bytes(tensor))
