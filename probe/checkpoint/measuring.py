"""Two tensors compared block by block: the same bits, or by how much they differ, and whether rounding explains it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

import numpy as np

from probe.checkpoint.report import CLOSE, DIFFERENT, IDENTICAL, ROUNDING
from probe.checkpoint.stored import Array, Tensor
from probe.common.numerics.formats import FORMATS, Format, Kind, format_of
from probe.common.numerics.rounding import decoded, rounded_to, spacing
from probe.common.numerics.values import BLOCK, Sums, Totals, differences

_BLOCK_BYTES = 1 << 19
"""Bytes that are read at once: two of them are at home in the second cache of a processor. Twice as many took 1.6 times
as long where 512 KiB of it are a core's, a quarter of them 1.2 times as long."""
_CLOSE_ULP = 2.0
"""Units in the last place between two numbers that were made of one by a rounding each: half a unit each makes one, and
at a power of two the unit below is half as large."""
_SHORTER = ("bfloat16", "float16")
"""Formats to which weights are rounded, whatever the files store."""

_FACTOR_ERROR = 1e-14
"""The relative error of a factor, which is a quotient of sums of 32,768 products in float64: a guess, ten times what
sums of normal numbers were off by."""
_ROW_BEGINNING = 8
"""Numbers at the beginning of a row that are compared to tell rows that differ; a guess."""
_SQUARES_ERROR = 1e-11
"""The relative error of a sum of squares in float64: 4096 terms one after the other in a lane of a block, and up to
2^14 blocks, each rounded by 2^-53 at most, are 2.3e-12."""


class Seen(NamedTuple):
    """Sums over two tensors of real numbers, which tell what one cannot be of the other.

    NaN and infinities are at the same positions of both, and left out.
    """

    squares_one: float
    squares_other: float
    products: float
    is_multiple: bool
    """True if all numbers of the first are those of the second times `factor`, up to the rounding of both dtypes."""
    other_rows: int
    """Rows whose beginnings differ."""

    @property
    def factor(self) -> float:
        return self.products / self.squares_other

    @property
    def has_zeros_alone(self) -> bool:
        """True if one of them may be zero everywhere; squares of the smallest numbers of float64 are zero, too."""
        return not (self.squares_one and self.squares_other)

    @property
    def may_be_moved(self) -> bool:
        """True if one may have the numbers of the other in another order: then their squares add up to the same."""
        larger = max(self.squares_one, self.squares_other)
        return not abs(self.squares_one - self.squares_other) > _SQUARES_ERROR * larger


@dataclass
class Measured:
    """Comparison of two tensors of one shape."""

    verdict: str
    how: str = ""
    max_abs: Optional[float] = 0.0  # noqa: UP045 (evaluated, on Python 3.9 too)
    """``None``, as the others, if it is not known."""
    max_rel: Optional[float] = 0.0  # noqa: UP045
    ulp_max: Optional[float] = 0.0  # noqa: UP045
    ulp_mean: Optional[float] = 0.0  # noqa: UP045
    l2: Optional[float] = 0.0  # noqa: UP045
    relative_l2: Optional[float] = 0.0  # noqa: UP045
    cos: Optional[float] = 1.0  # noqa: UP045
    seen: Optional[Seen] = field(default=None, init=False)  # noqa: UP045
    """``None`` too where NaN or infinities are not at the same positions, and of complex numbers."""


def blocks(one: Tensor) -> Iterator[tuple[int, int]]:
    """The rows that are read at once: first, and the one behind the last."""
    rows = one.row_count
    width = max(math.prod(one.row_shape) * one.words.itemsize, 1)
    step = max(_BLOCK_BYTES // width, 1)
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def measure(one: Tensor, other: Tensor) -> Measured:
    """Compare two tensors of one shape."""
    try:
        if one.key is not None and one.key == other.key:
            return Measured(IDENTICAL)
        if one.dtype == other.dtype and all(_same_bits(one.rows(*rows), other.rows(*rows)) for rows in blocks(one)):
            return Measured(IDENTICAL)
        return _measure(one, other)
    finally:
        one.release()
        other.release()


def is_complex(tensor: Tensor) -> bool:
    """True if the numbers of a tensor are complex, which no real ones are compared with."""
    found = format_of(tensor.dtype)
    return found is not None and found.is_complex


def _same_bits(one: Array, other: Array) -> bool:
    if not one.size:
        return True
    one, other = np.ascontiguousarray(one).reshape(-1), np.ascontiguousarray(other).reshape(-1)
    wide = np.uint64 if one.nbytes % 8 == 0 else np.uint8
    return bool(np.array_equal(one.view(wide), other.view(wide)))


def not_comparable(one: Tensor, other: Tensor) -> str:
    """The reason why the numbers of two tensors cannot be compared; empty if they can."""
    formats = format_of(one.dtype), format_of(other.dtype)
    if any(each is None or each.kind is Kind.BITS or each.packed > 1 for each in formats):
        return "other bits"
    return "only one is complex" if is_complex(one) != is_complex(other) else ""


def _measure(one: Tensor, other: Tensor) -> Measured:
    unlike = not_comparable(one, other)
    if unlike:
        return Measured(DIFFERENT, unlike, *[math.nan] * 7)
    totals, ulps = Totals(), _Ulps(coarser(one.dtype, other.dtype))
    guesses = _guesses(one.dtype, other.dtype)
    multiple, other_rows = _Multiple(least_error(one.dtype, other.dtype)), 0
    special = False
    for rows in blocks(one):
        whole = one.rows(*rows), other.rows(*rows)
        other_rows += _other_rows(whole, (one.dtype, other.dtype))
        left, right = (each.reshape(-1) for each in whole)
        for start in range(0, left.size, BLOCK // 2):
            words = left[start : start + BLOCK // 2], right[start : start + BLOCK // 2]
            with np.errstate(all="ignore"):
                numbers = _common(decoded(words[0], one.dtype), decoded(words[1], other.dtype))
                if guesses:
                    exact = numbers[0].astype(np.float64), numbers[1].astype(np.float64)
                    guesses = {name: fits for name, fits in guesses.items() if fits(*exact)}
                sums = differences(*numbers, ulps.format, multiple.factor, multiple.error)
                if sums is not None and math.isfinite(sums.squares_one) and math.isfinite(sums.squares_other):
                    if multiple.needs(sums.products, sums.squares_other):
                        sums = differences(*numbers, ulps.format, multiple.factor, multiple.error) or sums
                    totals.add_sums(sums, numbers[0].size)
                    ulps.add_sums(sums, numbers[0].size)
                    multiple.fits = multiple.fits and not sums.not_multiples
                    continue
                wide = numbers[0].astype(np.float64), numbers[1].astype(np.float64)
                finite = np.isfinite(numbers[0]) & np.isfinite(numbers[1])
                if not finite.all():
                    special = special or not np.array_equal(wide[0][~finite], wide[1][~finite], equal_nan=True)
                    numbers = np.where(finite, numbers[0], 0), np.where(finite, numbers[1], 0)
                    wide = np.where(finite, wide[0], 0), np.where(finite, wide[1], 0)
                totals.add(*numbers)
                ulps.add(*wide)
                multiple.add(*wide)
    measured = _judged(one, other, totals, ulps, list(guesses), special)
    if not special and not is_complex(one):
        measured.seen = Seen(*totals.squares, multiple.fits, other_rows)
    return measured


def _other_rows(rows: tuple[Array, Array], dtypes: tuple[str, str]) -> int:
    """The number of rows whose beginnings differ, where they do not have a NaN both; none of a vector."""
    if rows[0].ndim < 2:
        return 0
    one, other = (
        decoded(each.reshape(len(each), -1)[:, :_ROW_BEGINNING], dtype).reshape(len(each), -1)
        for each, dtype in zip(rows, dtypes)
    )
    return int(((one != other) & ~(np.isnan(one) & np.isnan(other))).any(1).sum())


def least_error(one: str, other: str) -> float:
    """The relative error of a product that is rounded to both formats, with a factor that is a quotient of sums."""
    digits = [found.digits for each in (one, other) if (found := format_of(each)) is not None]
    return 2.0 ** (2 - min(digits)) + _FACTOR_ERROR if min(digits, default=0) else 0.0


class _Multiple:
    """Tells whether all numbers are those of the other side times one factor, up to a relative error.

    The factor is that of the first block that is not zero: the roundings of its numbers are independent, so that it is
    closer to the factor of all than the error that is allowed.
    """

    def __init__(self, error: float) -> None:
        self.error, self.factor, self.fits = error, 0.0, True

    def needs(self, products: float, squares: float) -> bool:
        """Take the factor of a block, from its sums; true if the block was the first one that has a factor."""
        if self.factor or not self.fits or not squares:
            return False
        self.factor = products / squares
        self.fits = self.factor != 0
        return self.fits

    def add(self, one: Array, other: Array) -> None:
        """Take a block of both in float64, of finite numbers."""
        if self.fits:
            self.needs(float(np.dot(one, other)), float(np.dot(other, other)))
            multiple = self.factor * other
            self.fits = self.fits and bool((np.abs(one - multiple) <= self.error * np.abs(multiple)).all())


def _judged(one: Tensor, other: Tensor, totals: Totals, ulps: _Ulps, guesses: list[str], special: bool) -> Measured:
    distances = totals.distances()
    numbers = {
        "max_abs": distances.largest, "max_rel": distances.largest_relative, "ulp_max": ulps.largest,
        "ulp_mean": ulps.mean, "l2": distances.euclidean, "relative_l2": distances.relative, "cos": distances.cosine,
    }  # fmt: skip
    if special:
        # Numbers of what is finite on both sides would be those of a smaller tensor.
        return Measured(
            DIFFERENT, "NaN or infinities are not at the same positions", **dict.fromkeys(numbers, math.nan)
        )
    if distances.largest == 0:
        if one.dtype == other.dtype:
            return Measured(CLOSE, "0.0 and -0.0, or other bits of NaN", **numbers)
        longer, shorter = by_bits(one.dtype, other.dtype)
        return Measured(ROUNDING, f"{longer} storage of {shorter} values", **numbers)
    if guesses:
        return Measured(ROUNDING, guesses[0], **numbers)
    if ulps.format is not None and ulps.largest <= _CLOSE_ULP:
        return Measured(CLOSE, f"at most {ulps.largest:.3g} units in the last place of {ulps.format.name}", **numbers)
    return Measured(DIFFERENT, "", **numbers)


def _common(one: Array, other: Array) -> tuple[Array, Array]:
    """Both in the wider floating type, as vectors."""
    kind = np.result_type(one, other, np.float32)
    return one.astype(kind, copy=False).reshape(-1), other.astype(kind, copy=False).reshape(-1)


def by_bits(one: str, other: str) -> tuple[str, str]:
    """The dtype with more bits, and the other one."""
    sizes = [0 if (found := format_of(each)) is None else found.bits for each in (one, other)]
    return (one, other) if sizes[0] >= sizes[1] else (other, one)


def _real(dtype: str) -> Format | None:
    """The format of the numbers of a dtype: of a complex one that of its parts."""
    found = format_of(dtype)
    if found is not None and found.is_complex:
        found = FORMATS[found.part]
    return found if found is not None and found.digits > 1 else None


def coarser(one: str, other: str) -> Format | None:
    """The format of both that has fewer digits."""
    found = [each for each in (_real(one), _real(other)) if each is not None]
    return min(found, key=lambda each: each.digits) if found else None


class _Ulps:
    """Differences in units in the last place of a format."""

    def __init__(self, of: Format | None) -> None:
        self.format = of
        self.largest, self._total, self._count = 0.0, 0.0, 0

    def add(self, one: Array, other: Array) -> None:
        self._count += one.size
        if self.format is None:
            return
        units = np.abs(one - other) / spacing(np.maximum(np.abs(one), np.abs(other)), self.format)
        self.largest = max(self.largest, float(units.max()))
        self._total += float(units.sum())

    def add_sums(self, sums: Sums, count: int) -> None:
        self._count += count
        if self.format is not None:
            self.largest = max(self.largest, sums.most_units)
            self._total += sums.units

    @property
    def mean(self) -> float:
        return self._total / self._count if self._count else 0.0


_Fits = Callable[[Array, Array], bool]


class Conversion(NamedTuple):
    """A conversion that may have made one side of the other."""

    words: str
    to: Format | None
    """The shorter format that numbers were rounded to; ``None`` if they were cut off to bfloat16."""
    exact: int
    """The side that was converted into the other one: 0 for the first."""


def conversions(one: str, other: str) -> list[Conversion]:
    """The conversions that are tried for two dtypes: rounding, or truncation, to a shorter format."""
    sides = _real(one), _real(other)
    if None in sides:
        return []
    found: list[Conversion] = []
    for name in dict.fromkeys((*(side.name for side in sides if side is not None), *_SHORTER)):
        to = FORMATS[name.replace("_", "")]
        for index, (side, words) in enumerate(zip(sides, ("", " on the first side"))):
            if side is not None and to.digits < side.digits:
                # The one that has more digits was rounded.
                found.append(Conversion(f"rounded to {name}{'' if index == 0 else words}", to, index))
    for index in (0, 1):
        side = sides[index]
        if side is not None and side.digits > FORMATS["bfloat16"].digits:
            found.append(Conversion(f"cut off to bfloat16{' on the first side' if index else ''}", None, index))
    return found


def _guesses(one: str, other: str) -> dict[str, _Fits]:
    return {words: _cuts(index) if to is None else _rounds(to, index) for words, to, index in conversions(one, other)}


def _rounds(to: Format, index: int) -> _Fits:
    def fits(one: Array, other: Array) -> bool:
        exact, short = (one, other) if index == 0 else (other, one)
        return bool(np.array_equal(rounded_to(exact, to), short, equal_nan=True))

    return fits


def _cuts(index: int) -> _Fits:
    def fits(one: Array, other: Array) -> bool:
        exact, short = (one, other) if index == 0 else (other, one)
        cut = (exact.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        return bool(np.array_equal(cut, short, equal_nan=True))

    return fits
