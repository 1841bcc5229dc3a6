"""The fingerprint of one tensor: digests, statistics, a sketch and a few of its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from probe.checkpoint.sampling import sample
from probe.checkpoint.stored import Array, Regions, Reshaped, Segments, Shape, Slice, Tensor, Transposed
from probe.common.errors import MsprobeException
from probe.common.numerics.digests import NOT_KNOWN, ROW, Digested, Pass

_BLOCK_BYTES = 1 << 18
"""Bytes that are read at once: read and digested, they stay in the second cache of a processor."""
_EVEN = 16
"""Parts of the rows whose digests are held: those that 2, 4, 8 or 16 ranks have."""
_RATIOS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
"""Queries for each key in a matrix of query, key and value, whose ends are held; other ratios are in no known model."""


class Entry(NamedTuple):
    """What is known of a tensor."""

    dtype: str
    shape: Shape
    told: Digested
    sample: Array
    """As `probe.checkpoint.pairing.pairs.sample` takes it, in float32."""
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
    rows = np.concatenate([np.arange(*each) for each in view.ranges])
    inner = rows_in(view.of)
    return (view.of, rows) if inner is None else (inner[0], inner[1][rows])


def _whole_order(view: Slice) -> Array | None:
    """The rows of a view, if they are all of the tensor, each once."""
    count = view.of.row_count
    if view.row_count != count:
        return None
    order = np.concatenate([np.arange(*each) for each in view.ranges])
    return order if np.array_equal(np.sort(order), np.arange(count)) else None
