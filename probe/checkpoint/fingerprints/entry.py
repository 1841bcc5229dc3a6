"""The fingerprint of one tensor: digests, statistics, a sketch and a few of its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from probe.checkpoint.sampling import positions_of_sample, sample
from probe.checkpoint.stored import Array, Regions, Reshaped, Segments, Shape, Slice, Tensor, Transposed
from probe.common.errors import MsprobeException
from probe.common.numerics.digests import NOT_KNOWN, PRIME, ROW, Digested, Pass, added
from probe.common.numerics.formats import FORMATS
from probe.common.numerics.rounding import decoded, rounded_to

_BLOCK_BYTES = 1 << 22
"""Bytes that are read at once. On a busy machine larger blocks are faster than those that stay in a cache, as threads
change less often; on a quiet one there is no difference."""
_EVEN = 16
"""Parts of the rows whose digests are held: those that 2, 4, 8 or 16 ranks have."""
_RATIOS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
"""Queries for each key in a matrix of query, key and value, whose ends are held; other ratios are in no known model."""


class Entry(NamedTuple):
    """The fingerprint of a tensor."""

    dtype: str
    shape: Shape
    told: Digested
    sample: Array
    """The numbers that `probe.checkpoint.sampling.sample` takes, in float32."""
    cuts: tuple[int, ...]
    """For each of `rows_of_cuts` the digest of the values of all rows before it, or `NOT_KNOWN`."""


class Fingerprinted(Tensor):
    """A tensor of which nothing but the fingerprint is there.

    Args:
        parts: those of a stack, such as experts, if they have fingerprints of their own.
    """

    def __init__(self, entry: Entry, parts: Sequence[Fingerprinted] = ()) -> None:
        super().__init__(entry.dtype, entry.shape)
        self.entry: Entry = entry
        self.parts = list(parts)

    def rows(self, start: int, stop: int) -> Array:
        raise NotHeldError("a fingerprint has no values; give the checkpoint itself to see them.")

    def element(self, index: int, origin: str = "") -> Tensor:
        return self.parts[index] if self.parts else super().element(index, origin)


class NotHeldError(MsprobeException):
    """Values were asked for that a fingerprint does not have."""


def rows_of_cuts(shape: Shape) -> list[int]:
    """The rows before which digests of a tensor are held: where ranks, gate and up, or query, key and value part."""
    rows, width = (shape[0] if shape else 1), math.prod(shape[1:])
    found = {rows * part // _EVEN for part in range(1, _EVEN) if rows * part % _EVEN == 0}
    for ratio in _RATIOS:
        if rows % (ratio + 2) == 0:
            found.update((rows // (ratio + 2) * ratio, rows // (ratio + 2) * (ratio + 1)))
    return sorted(row for row in found if row and row * width % ROW == 0)


def entry_of(tensor: Tensor) -> Entry:
    """The fingerprint of a tensor, which is read once, and is kept with it."""
    if tensor.entry is None:
        cuts = rows_of_cuts(tensor.shape)
        passing = Pass(tensor.dtype)
        at = dict.fromkeys(cuts, NOT_KNOWN)
        for start, stop in _blocks(tensor, cuts):
            if start in at:
                value = passing.value_so_far()
                at[start] = NOT_KNOWN if value is None else value
            passing.add(tensor.rows(start, stop))
        with np.errstate(over="ignore"):
            few = sample(tensor).astype(np.float32)
        tensor.entry = Entry(tensor.dtype, tensor.shape, passing.finish(), few, tuple(at[row] for row in cuts))
        tensor.release()
    found: Entry = tensor.entry
    return found


def part_of(tensor: Tensor, starts: Shape, whole: Shape) -> Entry | None:
    """The fingerprint of a whole tensor as far as one part makes it: those of all parts add up to that of the whole.

    Args:
        tensor: the part.
        starts: the index of its first element in the whole.
        whole: the shape of the whole.

    Returns: ``None`` if the part is no block of rows or columns that begins and ends with rows of 64 elements.
    """
    width = math.prod(whole[1:])
    rows = range(starts[0], starts[0] + tensor.row_count) if whole else range(1)
    place = _place_in_row(starts[1:], tensor.shape[1:], whole[1:])
    if place is None:
        return None
    first, wide = place
    if (width != wide and (width % ROW or first % ROW or wide % ROW)) or rows[0] * width % ROW:
        return None
    if rows[-1] + 1 < whole[0] and tensor.size % ROW:
        return None
    cuts = rows_of_cuts(whole)
    passing, at = Pass(tensor.dtype), dict.fromkeys(cuts, 0)
    for number, row in enumerate(rows):
        if row in at:
            at[row] = _value(passing)
        if wide != width or not number:
            passing.seek((row * width + first) // ROW)
        passing.add(tensor.rows(number, number + 1))
    value = _value(passing)
    at.update((cut, value) for cut in cuts if cut > rows[-1])
    chosen, columns = positions_of_sample(whole)
    few = np.full((len(chosen), len(columns)), np.nan, np.float32)
    for index, row in enumerate(chosen):
        if row in rows:
            line = decoded(tensor.rows(row - rows[0], row - rows[0] + 1).reshape(-1), tensor.dtype)
            inside = [number for number, column in enumerate(columns) if first <= column < first + wide]
            few[index, inside] = line[[columns[number] - first for number in inside]]
    return Entry(tensor.dtype, whole, passing.finish(), few.reshape(-1), tuple(at.values()))


def _value(passing: Pass) -> int:
    value = passing.value_so_far()
    return NOT_KNOWN if value is None else value


def _place_in_row(starts: Shape, shape: Shape, whole: Shape) -> tuple[int, int] | None:
    """The first element of a row that a part has, and their number; ``None`` if they do not follow each other."""
    split = [axis for axis in range(len(whole)) if shape[axis] != whole[axis]]
    if not split:
        return 0, math.prod(whole)
    inner = math.prod(whole[split[0] + 1 :])
    if len(split) > 1 or math.prod(whole[: split[0]]) != 1:
        return None
    return starts[split[0]] * inner, shape[split[0]] * inner


def together(parts: Sequence[tuple[Entry, int]]) -> Entry:
    """The fingerprint of a tensor of those that its parts made, each with the number of its elements."""
    whole, size = parts[0]
    for entry, elements in parts[1:]:
        cuts = (NOT_KNOWN if NOT_KNOWN in each else sum(each) % PRIME for each in zip(whole.cuts, entry.cuts))
        few = np.where(np.isnan(whole.sample), entry.sample, whole.sample)
        whole = whole._replace(told=added(whole.told, entry.told, (size, elements)), sample=few, cuts=tuple(cuts))
        size += elements
    return whole


def _blocks(tensor: Tensor, cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The rows that are read at once, so that none goes over a cut."""
    width = max(math.prod(tensor.row_shape) * tensor.words.itemsize, 1)
    step = max(_BLOCK_BYTES // width, 1)
    start = 0
    for end in (*cuts, tensor.row_count):
        while start < end:
            stop = min(start + step, end)
            yield start, stop
            start = stop


# --- views


class Reordered(Tensor):
    """A tensor whose rows stand in another order; it is read as a whole, once.

    Args:
        order: for each row the one of the other tensor.
    """

    def __init__(self, of: Tensor, order: Array) -> None:
        super().__init__(of.dtype, of.shape)
        self.of, self.order = of, order
        self._held: Array | None = None

    def rows(self, start: int, stop: int) -> Array:
        if self._held is None:
            self._held = self.of.read()
        return self._held[self.order[start:stop]]

    def release(self) -> None:
        self._held = None
        self.of.release()


class Rounded(Tensor):
    """A tensor of real numbers with its values rounded to a shorter dtype, in float32."""

    def __init__(self, of: Tensor, dtype: str) -> None:
        super().__init__("float32", of.shape)
        self.of, self._to = of, FORMATS[dtype.replace("_", "")]

    def rows(self, start: int, stop: int) -> Array:
        numbers = decoded(self.of.rows(start, stop), self.of.dtype)
        with np.errstate(all="ignore"):
            rounded: Array = rounded_to(numbers.astype(np.float64), self._to).astype(np.float32)
        return rounded

    def release(self) -> None:
        self.of.release()


def rests_on_fingerprint(tensor: Tensor) -> bool:
    """True if the values of a tensor are not there."""
    if isinstance(tensor, Fingerprinted):
        return True
    if isinstance(tensor, Regions):
        return any(rests_on_fingerprint(part) for _, part in tensor.parts)
    if isinstance(tensor, Segments):
        return any(map(rests_on_fingerprint, tensor.parts))
    of = getattr(tensor, "of", None)
    return of is not None and rests_on_fingerprint(of)


def is_whole(tensor: Tensor) -> bool:
    """True if a tensor has values, or is a fingerprint and no part of one."""
    return isinstance(tensor, Fingerprinted) or not rests_on_fingerprint(tensor)


def facing(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors that are compared, with views of a fingerprint undone on the other side where it has values.

    A fingerprint cannot be transposed or have its rows put in another order. The tensor that it is compared with can.
    """
    if rests_on_fingerprint(one) and not rests_on_fingerprint(other):
        other, one = facing(other, one)
        return one, other
    while not isinstance(other, Fingerprinted) and rests_on_fingerprint(other) and not rests_on_fingerprint(one):
        if isinstance(other, Transposed):
            one, other = Transposed(one, one.origin), other.of
        elif isinstance(other, Reshaped):
            one, other = Reshaped(one, other.of.shape), other.of
        elif isinstance(other, Slice) and (order := _whole_order(other)) is not None:
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            one, other = Reordered(one, back), other.of
        else:
            break
    return one, other


def rows_in(view: Tensor) -> tuple[Tensor, Array] | None:
    """A tensor and the rows of it that a view has; ``None`` if it is no view of rows."""
    if not isinstance(view, Slice):
        return None
    rows = _rows_of(tuple(view.ranges))
    inner = rows_in(view.of)
    return (view.of, rows) if inner is None else (inner[0], inner[1][rows])


@lru_cache(maxsize=64)
def _rows_of(ranges: tuple[tuple[int, int, int], ...]) -> Array:
    """The numbers of the rows in some ranges, which all layers of a model have in common; they cannot be written to."""
    rows: Array = np.concatenate([np.arange(*each) for each in ranges])
    rows.flags.writeable = False
    return rows


def _whole_order(view: Slice) -> Array | None:
    """The rows of a view, if they are all of the tensor, each once."""
    count = view.of.row_count
    if view.row_count != count:
        return None
    order = _rows_of(tuple(view.ranges))
    return order if np.array_equal(np.sort(order), np.arange(count)) else None
