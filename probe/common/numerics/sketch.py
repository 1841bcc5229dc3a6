"""A linear sketch of a tensor: 64 signed sums of its elements, from which distances of tensors are measured.

Element ``i`` of the tensor, in row-major order of its shape, is in column ``j = i % 64`` of row ``r = i // 64``:

    sign(i) = -1 where bit j of mixed((r + 1) * 0x9E3779B97F4A7C15) is set, else +1
    lane(i) = j XOR (mixed(r % 4093) >> 58)
    sketch[lane(i)] += sign(i) * x[i]

`mixed` is the finalizer of SplitMix64 (Steele, Lea, Flood 2014; constants of Stafford's thirteenth variant) on unsigned
64-bit integers. Signs and lanes are functions of the index alone. A row of 64 neighbours fills every lane once, and the
lanes of a column change from row to row, whatever the width of the tensor is.

The sketch is a count sketch (Charikar, Chen, Farach-Colton 2002) with one row, and its squared norm the estimate of
Alon, Matias and Szegedy (1996): unbiased, with a relative standard error of sqrt(2 / 64) for a square and half as much
for a norm. Backends compute the same sums up to the rounding of float32; this module is the definition of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

VERSION = 1
"""1 (2026-11): first version. A sketch is compared with those of its own version alone."""
LANES = 64
"""Signed sums of a sketch: a part of the format. Of n lanes the relative error of a distance is about sqrt(2 / n)."""
SHIFTED_ROWS = 4093
"""A prime number of rows after which the shifts of lanes begin again: no usual width of a tensor is a multiple."""
MARKS = 8
"""Signed sums over the elements that the sketch leaves out."""
LIMIT = 2.0**100
"""Elements of this size or more, infinities and NaN are left out: a mask of ``finfo.min`` would drown all others, and
2^27 of a smaller size still have a sum in float32."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_PART = SHIFTED_ROWS * LANES
"""Elements that are read at once."""

Sums = NDArray[np.float32]


class Sketch(NamedTuple):
    """The sketch of one tensor."""

    sums: Sums
    """64 sums of float32. A tensor of fewer elements has its own values there, with their signs, and zeros."""
    excluded: int = 0
    """The number of elements that are left out: infinities, NaN, and those of 2^100 or more."""
    marks: Sums | None = None
    """Eight signed sums that tell which elements are left out; ``None`` where there are none."""

    def packed(self) -> bytes:
        """The bytes in a journal: the sums, then the number of excluded elements and the marks if there are any."""
        sums = self.sums.astype("<f4").tobytes()
        return sums if self.marks is None else sums + np.float32(self.excluded).tobytes() + self.marks.tobytes()


NOTHING = bytes(4 * LANES)
"""The packed sketch of a tensor without elements."""


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 of unsigned 64-bit integers, of any shape."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def signs(first_row: int, rows: int) -> NDArray[np.int8]:
    """The signs, 1 and -1, of the elements of some rows; shape ``[rows, 64]``."""
    words = mixed(np.arange(first_row + 1, first_row + rows + 1, dtype=np.uint64) * _GOLDEN)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8).reshape(rows, 8), axis=1, bitorder="little")
    return 1 - 2 * bits.astype(np.int8)


def shifts(first_row: int, rows: int) -> NDArray[np.intp]:
    """The number by which the columns of some rows are turned into lanes, by exclusive or; shape ``[rows]``."""
    numbers = np.arange(first_row, first_row + rows, dtype=np.uint64) % np.uint64(SHIFTED_ROWS)
    return (mixed(numbers) >> np.uint64(58)).astype(np.intp)


def sketch(values: NDArray[Any]) -> Sketch:
    """The sketch of an array of any shape: numbers or booleans, complex ones as pairs of real and imaginary part."""
    if values.dtype.kind == "c":
        values = np.ascontiguousarray(values).view(values.real.dtype)
    flat = values.reshape(-1)
    sums, marks, excluded = np.zeros(LANES), np.zeros(MARKS), 0
    for start in range(0, flat.size, _PART):
        part = flat[start : start + _PART].astype(np.float64)
        with np.errstate(invalid="ignore"):
            left_out = ~(np.abs(part) < LIMIT)
        if left_out.any():
            excluded += int(left_out.sum())
            part[left_out] = 0
            marks += lanes(left_out.astype(np.float64), start // LANES).reshape(-1, MARKS).sum(0)
        sums += lanes(part, start // LANES)
    if not excluded:
        return Sketch(sums.astype(np.float32))
    return Sketch(sums.astype(np.float32), excluded, marks.astype(np.float32))


def lanes(part: NDArray[np.float64], first_row: int) -> NDArray[np.float64]:
    """The sums of a part of a tensor that begins at a row, in float64."""
    rows = -(-part.size // LANES)
    table = np.zeros((rows, LANES))
    table.reshape(-1)[: part.size] = part
    table *= signs(first_row, rows)
    found, shifted = np.zeros(LANES), shifts(first_row, rows)
    for shift in range(LANES):
        found[np.arange(LANES) ^ shift] += table[shifted == shift].sum(0)
    return found


def unpacked(data: bytes) -> Sketch:
    """The sketch whose bytes these are, see `Sketch.packed`.

    Raises:
        ValueError: they are of no sketch.
    """
    if len(data) not in (4 * LANES, 4 * (LANES + 1 + MARKS)):
        raise ValueError(f"{len(data)} bytes are no sketch")
    numbers = np.frombuffer(data, "<f4").astype(np.float32)
    if numbers.size == LANES:
        return Sketch(numbers)
    return Sketch(numbers[:LANES], int(numbers[LANES]), numbers[LANES + 1 :])


class Distance(NamedTuple):
    """The norm of the difference of two tensors, as their sketches tell."""

    estimate: float
    low: float
    """The lower end of an interval that holds the true distance in 99 of 100 cases, and the upper end of it."""
    high: float
    relative: float
    """The estimate divided by the estimated norm of the second tensor; infinite if that is 0 and the first is not."""


_BELOW, _ABOVE = math.sqrt(LANES / 98.105), math.sqrt(LANES / 38.610)
"""The ends of the interval for an estimate of 1: the 0.995 and the 0.005 quantile of a chi-squared distribution with 64
degrees of freedom, which the squared estimate has where many elements differ."""
_ROUNDING = 2.0**-24
"""The unit roundoff of float32, in which the sums are."""


def distance(first: Sketch, second: Sketch, elements: int | None = None) -> Distance:
    """The distance of two tensors with the same number of elements, in units of the elements.

    Args:
        first: The sketch of one tensor.
        second: The sketch of the other.
        elements: The number of elements of each; up to 64 the distance is exact to the rounding of float32.
    """
    one, other = first.sums.astype(np.float64), second.sums.astype(np.float64)
    estimate, norm = float(np.linalg.norm(one - other)), float(np.linalg.norm(other))
    rounding = _ROUNDING * (float(np.linalg.norm(one)) + norm)
    exact = elements is not None and elements <= LANES
    low, high = (estimate, estimate) if exact else (estimate * _BELOW, estimate * _ABOVE)
    relative = estimate / norm if norm else (math.inf if estimate else 0.0)
    return Distance(estimate, max(0.0, low - rounding), high + rounding, relative)


def cosine(first: Sketch, second: Sketch) -> float:
    """The cosine of the angle between two tensors, within about 0.13 if they are orthogonal; NaN if one is 0."""
    one, other = first.sums.astype(np.float64), second.sums.astype(np.float64)
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return max(-1.0, min(1.0, float(np.dot(one, other)) / norms)) if norms else math.nan


class Cosine(NamedTuple):
    """The cosine of the angle between two tensors, as their sketches tell."""

    estimate: float
    low: float
    """The lower end of an interval that holds the true cosine in 99 of 100 cases, and the upper end of it."""
    high: float

    def in_words(self) -> str:
        """The cosine with its interval, if that is wider than the digits: ``0.71 (0.51 to 0.84)``."""
        low, high = cosine_text(self.low), cosine_text(self.high)
        return cosine_text(self.estimate) + ("" if low == high else f" ({low} to {high})")


_DECIMALS = 7
"""Decimals of a cosine at most: those of float32, in which sketches are."""


def cosine_text(cosine: float) -> str:
    """A cosine with the digits that tell it from 1, two of them.

    Example:
        >>> cosine_text(0.99998734), cosine_text(-0.31), cosine_text(1.0)
        ('0.999987', '-0.31', '1')
    """
    far = 1 - abs(cosine)
    if far < 10.0**-_DECIMALS:
        return f"{cosine:.0f}"
    return f"{cosine:.{min(_DECIMALS, max(2, 1 - math.floor(math.log10(far))))}f}"


_FISHER = 2.576 / math.sqrt(LANES - 2)
"""Half the width of the interval in Fisher's z: the 0.995 quantile of the normal distribution over its square root."""


def cosine_interval(first: NDArray[Any], second: NDArray[Any], elements: int | None = None) -> Cosine:
    """The cosine of two tensors by the sums of their sketches, with its interval; NaN if one is 0.

    Where many elements contribute, the 64 pairs of lanes are independent and normal, with the correlation of the two
    tensors. Their cosine is then a sample correlation without means, whose ``atanh`` is normal with a variance of
    1 / (64 - 2) (R. A. Fisher 1921): the standard error is (1 - cosine^2) / 8, which is small near 1. If few elements
    are large, it is smaller.

    Args:
        first, second: The sums, shape ``[64]``.
        elements: The number of elements of each; up to 64 the cosine is exact to the rounding of float32.
    """
    found = cosine(Sketch(first), Sketch(second))
    if (elements is not None and elements <= LANES) or not abs(found) < 1:
        return Cosine(found, found, found)
    z = math.atanh(found)
    return Cosine(found, math.tanh(z - _FISHER), math.tanh(z + _FISHER))


def factor(first: Sketch, second: Sketch) -> float:
    """The number by which the second tensor is multiplied to be nearest to the first; NaN if the second is 0."""
    one, other = first.sums.astype(np.float64), second.sums.astype(np.float64)
    square = float(np.dot(other, other))
    return float(np.dot(one, other)) / square if square else math.nan
