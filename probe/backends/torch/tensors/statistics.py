"""Max, Min, Mean and Norm of a tensor, or a checksum of its bytes.

float16, bfloat16 and float32 are computed in the tensor's own type, as the contract says (the norm of two float16
values 60000 is Infinity), in float32 at high precision; float64 in itself; integers in float64 for Mean and Norm.
On the CPU results are there at once, from one pass over memory where `shared.tensors` is compiled; on a device
they wait for one common transfer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Callable, TypeVar, cast

import numpy as np
import torch

from probe.backends.protocol import Source
from probe.backends.shared import tensors
from probe.backends.shared.choices import choices_of
from probe.backends.torch import internals
from probe.backends.torch.guards import beneath_transforms
from probe.backends.torch.originals import functions, own
from probe.backends.torch.tensors import choices
from probe.backends.torch.tensors.plain_tensors import SEVERAL_THREADS_FROM
from probe.common.dump.choices import CHOICES
from probe.common.interfaces import MOST_ON_DEVICE, Entry, StatisticsMode
from probe.common.numerics import sketch as definition
from probe.common.numerics.sketch import LANES, LIMIT, MARKS, SHIFTED_ROWS

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


# --- sketches


_PERIOD = SHIFTED_ROWS * LANES
"""Elements after which lanes begin again; signs do not."""
_MOST_SIGNS = _PERIOD << 8
"""Elements that are sketched at once on a device, 67 million."""
_KINDS = {getattr(torch, name): kind for name, kind in tensors.KINDS.items() if hasattr(torch, name)}


def packed(tensor: torch.Tensor) -> bytes:
    """The packed sketch of a dense tensor on the host, of any dtype."""
    if not own.numel(tensor):
        return definition.NOTHING
    plain = own.resolve_neg(own.resolve_conj(own.detach(tensor)))
    if plain.dtype.is_complex:
        plain = functions.view_as_real(plain)
    if plain.dtype is torch.bool:
        plain = own.view(plain, torch.uint8)
    elif plain.dtype not in _KINDS:
        plain = own.to(plain, _wider(plain.dtype))
    if tensors.reduce is not None:
        kind = _KINDS[plain.dtype]
        made = tensors.reduce(own.data_ptr(plain), plain.shape, own.stride(plain), kind, False, True)[4]
        assert made is not None
        return made
    # Lent, and not by torch's own way: after that it would refuse to resize the memory, as FSDP2 does all the time.
    wider = _wider(plain.dtype)
    lent = bytes_of(own.to(plain, wider)).view(np.float32 if wider is torch.float32 else np.float64)
    return definition.sketch(lent).packed()


def _wider(dtype: torch.dtype) -> torch.dtype:
    """A dtype that numpy has and that holds all values of `dtype`; of uint64 and int64 the 53 highest bits."""
    return torch.float32 if dtype.is_floating_point and dtype is not torch.float64 else torch.float64


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """64 sums, the number of excluded elements and eight marks, still being computed; shape ``[73]``, float32.

    Args:
        tensor: A tensor with at least one element.
    """
    plain = own.detach(tensor)
    if plain.dtype.is_complex:
        plain = functions.view_as_real(own.resolve_conj(plain))
    flat = own.to(own.reshape(plain, -1), torch.float32)
    total: Any = None
    for start in range(0, own.numel(flat), _MOST_SIGNS):
        part = own.narrow(flat, 0, start, min(_MOST_SIGNS, own.numel(flat) - start))
        made = _part(part, start // LANES)
        total = made if total is None else functions.add(total, made)
    return total  # type: ignore[no-any-return]


def _part(part: torch.Tensor, first_row: int) -> torch.Tensor:
    kept = functions.lt(functions.abs(part), LIMIT)
    both = functions.stack((functions.where(kept, part, 0.0), functions.where(kept, 0.0, 1.0)))
    size = own.numel(part)
    signed = functions.mul(both, own.narrow(_signs(part.device, first_row, size), 0, 0, size))
    period = min(_PERIOD, -(-size // LANES) * LANES)
    signed = functions.constant_pad_nd(signed, (0, -size % period))
    # Rows with the same shift come together first, then the columns are turned into lanes.
    rows = own.reshape(signed, (2, -1, period))
    summed = own.reshape(own.sum(rows, 1), (2, -1))
    order = own.narrow(_order(part.device), 0, 0, period)
    lanes = own.sum(own.reshape(functions.index_select(summed, 1, order), (2, -1, LANES)), 1)
    marks = own.sum(own.reshape(own.__getitem__(lanes, 1), (-1, MARKS)), 0)
    count = own.sum(own.__getitem__(both, 1))
    made: torch.Tensor = functions.cat((own.__getitem__(lanes, 0), own.reshape(count, 1), marks))
    return made


_kept_signs: dict[tuple[torch.device, int], torch.Tensor] = {}
_kept_orders: dict[torch.device, torch.Tensor] = {}


def _signs(device: torch.device, first_row: int, size: int) -> torch.Tensor:
    """At least `size` signs from `first_row` on, in float32 products of which nothing is rounded."""
    known = _kept_signs.get((device, first_row))
    if known is None or own.numel(known) < size:
        rows = 1 << (-(-size // LANES) - 1).bit_length()
        made = functions.from_numpy(definition.signs(first_row, rows).reshape(-1))
        known = _kept_signs[device, first_row] = own.to(made, device)
    return known


def _order(device: torch.device) -> torch.Tensor:
    """The index of the element that comes to each lane of each row of a period."""
    known = _kept_orders.get(device)
    if known is None:
        rows = np.arange(SHIFTED_ROWS)[:, None]
        order = rows * LANES + (np.arange(LANES) ^ definition.shifts(0, SHIFTED_ROWS)[:, None])
        known = _kept_orders[device] = own.to(functions.from_numpy(order.reshape(-1)), device)
    return known


def fetched(sums: Sequence[torch.Tensor]) -> list[bytes]:
    """The packed sketches of what `on_device` made, with one transfer from each device."""
    found: list[bytes] = [b""] * len(sums)
    for members in _by_device(sums):
        rows = own.numpy(own.cpu(functions.stack([sums[i] for i in members])))
        for i, row in zip(members, rows):
            found[i] = packed_row(row)
    return found


def _by_device(values: Sequence[torch.Tensor]) -> Iterable[list[int]]:
    """The places of the tensors of each device."""
    groups: dict[torch.device, list[int]] = {}
    for i, each in enumerate(values):
        groups.setdefault(each.device, []).append(i)
    return groups.values()


def packed_row(row: np.ndarray[Any, Any]) -> bytes:
    """The packed sketch of what `on_device` made, on the host."""
    count = int(row[LANES])
    return definition.Sketch(row[:LANES], count, row[LANES + 1 :] if count else None).packed()


# --- statistics


KEYS = ("Max", "Min", "Mean", "Norm")
_HALF = frozenset((torch.float16, torch.bfloat16))
_FLOAT = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_INTEGER = frozenset((torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64))
# No reductions of their own; int64 holds the first two.
_WIDENED = frozenset(getattr(torch, name) for name in ("uint16", "uint32") if hasattr(torch, name))
_UINT64 = getattr(torch, "uint64", None)
_OF_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
_ARRAYS = {**_OF_NUMPY, torch.int64: np.int64, torch.int32: np.int32}
EIGHT_BIT_FLOAT = frozenset(
    dtype for name, dtype in vars(torch).items() if name.startswith("float8_") and isinstance(dtype, torch.dtype)
)

_aminmax: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = functions.aminmax
_amin = functions.amin
_amax = functions.amax
_VECTORISED_FROM = 8192
"""Elements from which on torch's own reductions are faster than one pass here; a guess."""
_mean = functions.mean
_norm = internals.vector_norm

_ONE_PASS = {getattr(torch, name): kind for name, kind in tensors.KINDS.items() if hasattr(torch, name)}
if _ONE_PASS:
    _ONE_PASS[torch.bool] = tensors.KINDS["uint8"]


class Unsupported(Exception):
    """Raised for a kind of tensor that has no statistics; the message says which."""


class Statistics:
    """Computes statistics and keeps those that are still on a device."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Entry, tuple[torch.Tensor | None, ...], _Finite | None]] = []
        self._sketches: list[tuple[Entry, torch.Tensor]] = []
        self._bytes: list[tuple[Entry, torch.Tensor, Checksum]] = []
        self._held = 0
        """The number of those bytes."""
        self._choices: list[tuple[Entry, choices.Kept]] = []
        self.pending: Callable[[], int] = partial(any, (self._waiting, self._sketches, self._bytes, self._choices))
        """True if an entry waits for `resolve`; asked for every record, so no frame of Python is made for it."""

    def fill(self, entry: Entry, tensor: torch.Tensor, elements: int | None, summary: StatisticsMode) -> None:
        """Put the four statistics of a dense tensor of any shape into `entry`, now or at `resolve`.

        With `elements`, `tensor` holds what is not zero of a tensor of so many elements.
        """
        high_precision = summary.high_precision
        at_once = in_one_pass(tensor, summary) if elements is None else None
        if at_once is not None:
            entry["Max"], entry["Min"], entry["Mean"], entry["Norm"], sketch = at_once
            if sketch is not None:
                entry["sketch"] = sketch
            if summary.nonfinite:
                note_nonfinite(entry, tensor, elements)
            return
        if elements is None:
            results = _results(tensor, high_precision)
        else:
            results = _sparse_results(tensor, elements, high_precision)
        if results is None:
            entry["Max"] = entry["Min"] = entry["Mean"] = entry["Norm"] = None
        elif tensor.is_cpu:
            largest, smallest, mean, norm = results
            entry["Max"] = own.item(largest) if largest is not None else None
            entry["Min"] = own.item(smallest) if smallest is not None else None
            entry["Mean"] = own.item(mean) if mean is not None else None
            entry["Norm"] = own.item(norm) if norm is not None else None
            if summary.nonfinite:
                note_nonfinite(entry, tensor, elements)
        else:
            entry["Max"] = entry["Min"] = entry["Mean"] = entry["Norm"] = None
            if results[0] is tensor:
                # The user may write to it before it is read.
                tensor = own.clone(tensor)
                results = (tensor,) * 4
            counted = summary.nonfinite and own.is_floating_point(tensor)
            self._waiting.append((entry, results, _finite(tensor, elements) if counted else None))

    def sketch(self, entry: Entry, tensor: torch.Tensor) -> None:
        """Put the sketch of a dense tensor of any shape into `entry` if it is not there, now or at `resolve`."""
        if "sketch" not in entry:
            if tensor.is_cpu or not own.numel(tensor):
                entry["sketch"] = packed(tensor)
            else:
                self._sketches.append((entry, on_device(tensor)))

    def checksum(self, entry: Entry, tensor: torch.Tensor, checksum: Checksum) -> None:
        """Put the checksum of the bytes of a dense tensor of any shape into `entry`, now or at `resolve`."""
        if not waits(tensor):
            entry["md5"] = checksum(bytes_of(tensor))
            return
        entry["md5"] = None
        self._bytes.append((entry, copied_bytes(tensor), checksum))
        self._held += own.numel(tensor) * own.element_size(tensor)
        if self._held > MOST_ON_DEVICE:
            self._resolve_checksums()

    def _resolve_checksums(self) -> None:
        made, self._held = _taken(self._bytes), 0
        for (entry, _, checksum), read in zip(made, fetched_bytes([copied for _, copied, _ in made])):
            entry["md5"] = checksum(read)

    def note_choices(self, entry: Entry, indices: torch.Tensor, source: Source | None) -> None:
        """Put choices into `entry`, now or at `resolve`."""
        if indices.is_cpu:
            read = partial(beneath_transforms, _array)
            entry[CHOICES] = choices_of(read(indices), source, read).packed()
        else:
            self._choices.append((entry, beneath_transforms(choices.kept_of, indices, source)))

    def resolve(self) -> None:
        """Fill in every waiting entry, with one transfer for each device and type."""
        waiting = _taken(self._waiting)
        groups: dict[tuple[Any, Any], list[tuple[dict[Any, Any], Any, torch.Tensor]]] = {}
        counted: list[tuple[Entry, dict[int, Any]]] = []
        for entry, results, finite in waiting:
            for key, value in zip(KEYS, results):
                if value is not None:
                    groups.setdefault((value.device, value.dtype), []).append((entry, key, value))
            if finite is not None:
                found: dict[int, Any] = {}
                counted.append((entry, found))
                for index, value in enumerate(finite):
                    groups.setdefault((value.device, value.dtype), []).append((found, index, value))
        for members in groups.values():
            values = own.tolist(functions.stack([value for _, _, value in members]))
            for (holder, key, _), value in zip(members, values):
                holder[key] = value
        for entry, found in counted:
            if found[0]:
                tensors.add(entry, found[0], found[1], found[2])
        made = _taken(self._sketches)
        for entry, sketch in zip((entry for entry, _ in made), fetched([sums for _, sums in made])):
            entry["sketch"] = sketch
        choices.fill(_taken(self._choices))
        self._resolve_checksums()


_Waiting = TypeVar("_Waiting")


def _taken(waiting: list[_Waiting]) -> list[_Waiting]:
    """Take all that waits out of the list; what another thread adds meanwhile stays in it."""
    taken = waiting[:]
    del waiting[: len(taken)]
    return taken


Checksum = Callable[[np.ndarray[Any, Any]], str]
"""`tensors.crc32` or `tensors.xor`."""


def waits(tensor: torch.Tensor) -> bool:
    """True if the bytes of a tensor are copied on its device, and read with those of others.

    A larger one is read at once: there may be no room for its copy.
    """
    return not tensor.is_cpu and 0 < own.numel(tensor) * own.element_size(tensor) <= MOST_ON_DEVICE


def copied_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the bytes of a tensor on its device, one dimension: the user may write to it before they are read."""
    copied = beneath_transforms(own.clone, own.resolve_neg(own.resolve_conj(tensor)))
    return cast(torch.Tensor, own.view(own.reshape(copied, -1), torch.uint8))


def fetched_bytes(copies: Sequence[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    """The bytes of what `copied_bytes` made, on the host, with one transfer from each device."""
    found = [np.zeros(0, np.uint8)] * len(copies)
    for members in _by_device(copies):
        together = functions.cat([copies[i] for i in members]) if len(members) > 1 else copies[members[0]]
        read, start = own.numpy(own.cpu(together)), 0
        for i in members:
            end = start + own.numel(copies[i])
            found[i], start = read[start:end], end
    return found


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements of a tensor on the CPU; of a floating-point dtype but float64 in float32."""
    plain = own.detach(tensor)
    if own.is_floating_point(plain) and plain.dtype is not torch.float64:
        plain = own.to(plain, torch.float32)
    elif plain.dtype not in _ARRAYS:
        plain = own.to(plain, torch.int64)
    return bytes_of(plain).view(_ARRAYS[plain.dtype]).reshape(tuple(plain.shape))


_Finite = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def note_nonfinite(entry: Entry, tensor: torch.Tensor, elements: int | None) -> None:
    """Add to `entry`, which has its statistics, what there is to say of a tensor on the CPU that is not finite."""
    if not (tensors.shows(entry) and own.is_floating_point(tensor)):
        return
    # numpy takes an eighth of the time of torch's functions (256 elements: 8 and 40 us; 1,048,576: 0.6 and 5 ms). The
    # other types are in float32 without rounding.
    dtype = _OF_NUMPY.get(tensor.dtype)
    wide = own.detach(tensor) if dtype is not None else own.to(own.detach(tensor), torch.float32)
    count, largest, smallest = tensors.counted(bytes_of(wide).view(dtype or np.float32))
    if elements is not None and own.numel(tensor) < elements:
        largest, smallest = max(largest, 0.0), min(smallest, 0.0)
    tensors.add(entry, count, largest, smallest)


def _finite(tensor: torch.Tensor, elements: int | None) -> _Finite:
    """Number of values that are not finite, and maximum and minimum of the others; a device is still computing them."""
    if tensor.dtype in EIGHT_BIT_FLOAT:
        tensor = own.to(tensor, torch.float32)
    finite = functions.isfinite(tensor)
    largest = own.amax(functions.where(finite, tensor, -math.inf))
    smallest = own.amin(functions.where(finite, tensor, math.inf))
    if elements is not None and own.numel(tensor) < elements:
        largest, smallest = own.clamp(largest, min=0), own.clamp(smallest, max=0)
    return own.sum(functions.logical_not(finite)), largest, smallest


def in_one_pass(tensor: torch.Tensor, summary: StatisticsMode) -> tuple[Any, Any, Any, Any, bytes | None] | None:
    """Max, Min, Mean, Norm and sketch of a dense tensor on the host; ``None`` where they are not made like that."""
    kind = _ONE_PASS.get(tensor.dtype)
    shape = tensor.shape
    # A number of no dimension is its own statistics.
    if kind is None or not shape or not tensor.is_cpu or tensors.reduce is None or own.is_neg(tensor):
        return None
    elements = own.numel(tensor)
    if not elements or (elements >= SEVERAL_THREADS_FROM and not summary.sketch and torch.get_num_threads() > 1):
        return None
    address = own.data_ptr(tensor)
    if not address or not whole(tensor):
        return None
    found = tensors.reduce(address, shape, own.stride(tensor), kind, summary.high_precision, summary.sketch)
    return found if tensor.dtype is not torch.bool else (bool(found[0]), bool(found[1]), None, None, found[4])


def _results(tensor: torch.Tensor, high_precision: bool) -> tuple[torch.Tensor | None, ...] | None:
    """Max, Min, Mean, Norm as 0-dimensional tensors; ``None`` for an empty one."""
    if own.numel(tensor) == 0:
        return None
    dtype = tensor.dtype
    if dtype in _FLOAT:
        if own.dim(tensor) == 0:
            return tensor, tensor, tensor, tensor
        smallest, largest = _extremes(tensor)
        if high_precision and dtype in _HALF:
            return largest, smallest, _mean(tensor, dtype=torch.float32), _norm(tensor, dtype=torch.float32)
        return largest, smallest, _mean(tensor), _norm_of(tensor, dtype)
    if dtype in _INTEGER:
        if own.dim(tensor) == 0:
            return tensor, tensor, tensor, tensor
        smallest, largest = _extremes(tensor)
        wide = own.to(tensor, torch.float64)
        return largest, smallest, _mean(wide), _norm(wide)
    if dtype is torch.bool:
        return own.any(tensor), own.all(tensor), None, None
    if dtype.is_complex:
        # The contract gives no norm of complex tensors.
        of_absolute = _results(own.reshape(own.abs(tensor), -1), high_precision)
        return None if of_absolute is None else (*of_absolute[:3], None)
    if dtype in EIGHT_BIT_FLOAT:
        return _results(own.to(tensor, torch.float32), high_precision)
    if dtype in _WIDENED:
        return _results(own.to(tensor, torch.int64), high_precision)
    if dtype is _UINT64:
        return _uint64_results(tensor)
    raise Unsupported(f"statistics of {dtype}")


def _uint64_results(tensor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    if own.dim(tensor) == 0:
        return tensor, tensor, tensor, tensor
    flat = own.reshape(own.contiguous(tensor), -1)
    # With the highest bit turned over, signed numbers are in the order of the unsigned ones.
    ordered = own.bitwise_xor(own.view(flat, torch.int64), torch.iinfo(torch.int64).min)
    wide = own.to(flat, torch.float64)
    largest, smallest = (own.__getitem__(flat, at) for at in (own.argmax(ordered), own.argmin(ordered)))
    return largest, smallest, _mean(wide), _norm(wide)


def _norm_of(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # Rounded to float16 at the end, as the type's own kernel does, which is four times slower on the CPU.
    if dtype is torch.float16 and tensor.is_cpu:
        norm: torch.Tensor = own.to(_norm(tensor, dtype=torch.float32), dtype)
    else:
        norm = _norm(tensor)
    return norm


def _extremes(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # The full reduction of aminmax is not vectorised on the CPU, and copies what is not contiguous: one call is cheaper
    # for small tensors, but above some thousand elements two vectorised passes take two thirds of its time (115,000
    # float32: 13 against 19 us). Not so for the 16-bit types, nor for expanded tensors (124 against 7 us).
    if (
        tensor.is_cpu
        and own.numel(tensor) > _VECTORISED_FROM
        and tensor.dtype is torch.float32
        and 0 not in own.stride(tensor)
    ):
        return _amin(tensor), _amax(tensor)
    return _aminmax(tensor)


def _sparse_results(
    values: torch.Tensor, elements: int, high_precision: bool
) -> tuple[torch.Tensor | None, ...] | None:
    if elements == 0:
        return None
    if own.numel(values) >= elements:
        return _results(own.reshape(values, -1), high_precision)
    zero = functions.zeros(1, dtype=values.dtype, device=values.device)
    results = _results(functions.cat((own.reshape(values, -1), zero)), high_precision)
    assert results is not None
    largest, smallest, mean, norm = results
    # The mean was taken over the stored values and one zero.
    return largest, smallest, None if mean is None else functions.mul(mean, (own.numel(values) + 1) / elements), norm


def crc32(tensor: torch.Tensor) -> str:
    """CRC-32 of the raw bytes."""
    return tensors.crc32(bytes_of(tensor)) if own.numel(tensor) else tensors.NO_BYTES_CRC32
