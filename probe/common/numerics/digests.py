"""Digests of a tensor: 61 bits for its bits, for its values, and for its values rounded to shorter formats.

Words of 32 bits, in row-major order, are taken in rows of 64, the last one filled up with zeros:

    digest = sum of BASE^r * row(r) over rows r, modulo 2^61 - 1
    row(r) = sum of FACTORS[j] * word[64 r + j] over columns j, modulo 2^64

A polynomial over a prime field (Carter and Wegman, 1979, as in Rabin and Karp's search), of multiplied and added words
within a row: the sum needs no order, and the digest of two tensors one after the other follows from theirs if the first
one has whole rows (`joined`). Zeros at the end do not change it. It tells other weights; it does not resist someone who
looks for a collision.

Values are digested as words of float32, so that dtypes do not matter: 0.0 for -0.0, one NaN, and numbers that a format
rounds are rounded to the nearest one, ties to even. `_digests.c` does the same for float32, bfloat16 and float16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics import sketch as sketches
from probe.common.numerics.formats import FORMATS, Kind, format_of
from probe.common.numerics.rounding import decoded, rounded_to
from probe.common.numerics.sketch import Sketch, mixed

try:
    from probe.common.numerics import _digests
except ImportError:
    _digests = None  # type: ignore[assignment]

VERSION = 1
"""1 (2026-11): first version. Digests are compared with those of their own version alone."""
PRIME = (1 << 61) - 1
BASE = 0x9E3779B97F4A7C15 % PRIME
ROW = 64
FACTORS = (mixed(np.arange(ROW, dtype=np.uint64) + np.uint64(1 << 32)) >> np.uint64(32)) | np.uint64(1)
"""Odd numbers of 32 bits."""
NOT_KNOWN = (1 << 64) - 1
"""Stands for a digest that a format does not have; no digest is as large."""

BITS, VALUE, BFLOAT16, CUT, FLOAT16 = range(5)
"""The digests: of the bits, of the values in float32, of these rounded to bfloat16, cut off to it, and to float16."""
COUNT = 5
_KINDS = {"float32": 0, "bfloat16": 1, "float16": 2}
_PART = 4096 * ROW
"""Elements that are read at once."""
_NAN = np.uint32(0x7FC00000)
_WORDS = np.uint64(0xFFFFFFFF)

Words = NDArray[Any]


class Digested(NamedTuple):
    """The result of one pass over a tensor."""

    digests: tuple[int, ...]
    """By `BITS` to `FLOAT16`; `NOT_KNOWN` where the format has none."""
    elements: int
    """A digest of the values in any order, 64 bits: of the sums of their words and of the squares of these."""
    is_exact: bool
    """True if float32 holds every value."""
    nonfinite: int
    most: float
    """The largest finite number; infinite if there is none, as `least`."""
    least: float
    mean: float
    norm: float
    sketch: Sketch


def times(one: Words, other: Words) -> Words:
    """The products of numbers below `PRIME`, modulo it; uint64."""
    shift, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = one >> shift, one & mask, other >> shift, other & mask
    middle, low = a1 * b0 + a0 * b1, a0 * b0
    upper = np.uint64(8) * a1 * b1 + (middle >> np.uint64(29))
    return _folded(_folded(upper) + ((middle & np.uint64(0x1FFFFFFF)) << shift) + _folded(low))


def _folded(numbers: Words) -> Words:
    prime = np.uint64(PRIME)
    numbers = (numbers & prime) + (numbers >> np.uint64(61))
    return np.where(numbers >= prime, numbers - prime, numbers)


def _powers(count: int) -> Words:
    found, known = np.ones(count, np.uint64), 1
    while known < count:
        upto = min(2 * known, count)
        found[known:upto] = times(found[: upto - known], np.array([pow(BASE, known, PRIME)], np.uint64))
        known = upto
    return found


_POWERS = _powers(_PART // ROW)


def digest(words: Words, first_row: int = 0) -> int:
    """The digest of words, as a part that begins at a row of a longer tensor; at most `_PART` words."""
    rows = -(-words.size // ROW)
    table = np.zeros(rows * ROW, np.uint64)
    table[: words.size] = words
    sums = _folded((table.reshape(rows, ROW) * FACTORS).sum(1, dtype=np.uint64))
    products = times(sums, _POWERS[:rows])
    total = int((products >> np.uint64(32)).sum()) << 32
    total += int((products & _WORDS).sum())
    return total * pow(BASE, first_row, PRIME) % PRIME


def joined(parts: Sequence[tuple[int, int]]) -> int | None:
    """The digest of parts one after the other, of which each is given by its digest and the number of its words.

    ``None`` if a part but the last does not end with a row.
    """
    total, row = 0, 0
    for index, (one, words) in enumerate(parts):
        if words % ROW and index < len(parts) - 1:
            return None
        total = (total + term_at(one, row)) % PRIME
        row += words // ROW
    return total


def term_at(one: int, first_row: int) -> int:
    """The term that the digest of a part is in that of a whole, in which it begins at a row."""
    return one * pow(BASE, first_row, PRIME) % PRIME


def part_between(before: int, after: int, first_row: int) -> int:
    """The digest of the rows between two places, given those of all rows before each, and where they begin."""
    return (after - before) * pow(BASE, -first_row, PRIME) % PRIME


# --- a pass


class Pass:
    """The digests, statistics and sketch of a tensor, of which parts are given one after the other.

    Args:
        dtype: the plain name of the format.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        found = format_of(dtype)
        self._has_values = found is not None and found.kind is not Kind.BITS and found.packed == 1
        self._left: Words | None = None
        self._state: Any = None
        self._kind = _KINDS.get(dtype, -1) if _digests is not None else -1
        self._count = 0
        if self._kind >= 0:
            # Of numpy, whose memory is aligned.
            self._state = np.empty(_digests.SIZE // 8, np.uint64)
            _digests.start(self._state)
        else:
            self._slow = _Slow(dtype, self._has_values)

    def add(self, words: Words) -> None:
        """Take the bits of more elements, of the type that `word_type` gives."""
        words = np.ascontiguousarray(words).reshape(-1)
        self._count += words.size
        if self._left is not None and self._left.size:
            words = np.concatenate([self._left, words])
        whole = words.size // ROW * ROW
        self._left = words[whole:].copy()
        if whole:
            self._take(words[:whole])

    def seek(self, row: int) -> None:
        """Go on at another row of 64 elements: what is added next begins there, and all before it had whole rows."""
        if self._left is not None and self._left.size:
            self._take(self._left)
            self._left = None
        if self._state is not None:
            _digests.seek(self._state, row)
        else:
            self._slow.seek(row)

    def _take(self, words: Words) -> None:
        if self._state is not None:
            _digests.add(self._state, words, self._kind)
        else:
            for start in range(0, words.size, _PART):
                self._slow.add(words[start : start + _PART])

    def value_so_far(self) -> int | None:
        """The digest of the values of what was taken; ``None`` within a row, or where there are no values."""
        if self._left is not None and self._left.size:
            return None
        if self._state is not None:
            return int(_digests.finish(self._state)[0][VALUE])
        return self._slow.digests[VALUE] if self._has_values and not self._slow.is_complex else None

    def finish(self) -> Digested:
        """The result; nothing may be added afterwards."""
        if self._left is not None and self._left.size:
            self._take(self._left)
            self._left = None
        if self._state is None:
            return self._slow.finish(self._count)
        values, first, second, nonfinite, most, least, total, squares, packed = _digests.finish(self._state)
        if self.dtype == "bfloat16":
            values = (values[BITS], values[VALUE], values[VALUE], values[VALUE], NOT_KNOWN)
        return Digested(
            values, _in_any_order(first, second), True, nonfinite, most, least, total / max(self._count, 1),
            math.sqrt(squares), sketches.unpacked(packed),
        )  # fmt: skip


def added(one: Digested, other: Digested, sizes: tuple[int, int]) -> Digested:
    """The result for a tensor of which each rank took another part, at its place, of these numbers of elements."""
    known = zip(one.digests, other.digests)
    marks = [each.sketch.marks for each in (one, other) if each.sketch.marks is not None]
    summed = Sketch(
        (one.sketch.sums.astype(np.float64) + other.sketch.sums).astype(np.float32),
        one.sketch.excluded + other.sketch.excluded, np.sum(marks, 0, np.float32) if marks else None,
    )  # fmt: skip
    return Digested(
        tuple(NOT_KNOWN if NOT_KNOWN in pair else sum(pair) % PRIME for pair in known),
        (one.elements + other.elements) % (1 << 64), one.is_exact and other.is_exact, one.nonfinite + other.nonfinite,
        max(one.most, other.most), min(one.least, other.least),
        (one.mean * sizes[0] + other.mean * sizes[1]) / max(sum(sizes), 1), math.hypot(one.norm, other.norm), summed,
    )  # fmt: skip


def _in_any_order(words: int, squares: int) -> int:
    return (words + squares * 0x9E3779B97F4A7C15) % (1 << 64)


class _Slow:
    """A pass with numpy; of formats without values nothing but the bits is digested."""

    def __init__(self, dtype: str, has_values: bool) -> None:
        self.digests = [0] * COUNT
        found = format_of(dtype)
        self._dtype, self._has_values = dtype, has_values
        self.is_complex = found is not None and found.is_complex
        self._digits = 0 if found is None else found.digits
        self._row = self._value_row = 0
        self._words = self._squares = self._nonfinite = self._excluded = 0
        self._is_exact = True
        self._most, self._least, self._total, self._sum_of_squares = -math.inf, math.inf, 0.0, 0.0
        self._sums, self._marks = np.zeros(sketches.LANES), np.zeros(sketches.MARKS)

    def seek(self, row: int) -> None:
        found = format_of(self._dtype)
        wide = found is not None and found.bits == 64
        self._row, self._value_row = (2 * row if wide else row), (2 * row if self.is_complex else row)

    def add(self, words: Words) -> None:
        raw = words.view(f"u{min(words.itemsize, 4)}")
        for start in range(0, raw.size, _PART):
            part = raw[start : start + _PART]
            self.digests[BITS] = (self.digests[BITS] + digest(part, self._row)) % PRIME
            self._row += -(-part.size // ROW)
        if not self._has_values:
            return
        numbers = decoded(words, self._dtype).reshape(-1)
        for start in range(0, numbers.size, _PART):
            with np.errstate(invalid="ignore"):
                part = numbers[start : start + _PART].astype(np.float64)
            self._add_values(part)

    def _add_values(self, numbers: Words) -> None:
        row = self._value_row
        self._value_row += -(-numbers.size // ROW)
        with np.errstate(all="ignore"):
            single = numbers.astype(np.float32)
            self._is_exact &= bool(np.array_equal(single.astype(np.float64), numbers, equal_nan=True))
            values = _canonical(single)
            forms = {VALUE: values}
            if self._digits != 8 or self._dtype not in ("bfloat16", "bcomplex32"):
                forms[BFLOAT16] = _canonical(rounded_to(numbers, FORMATS["bfloat16"]).astype(np.float32))
                cut = np.where(values == _NAN, values, values & np.uint32(0xFFFF0000))
                forms[CUT] = _canonical(cut.view(np.float32))
                forms[FLOAT16] = _canonical(rounded_to(numbers, FORMATS["float16"]).astype(np.float32))
        for which, words in forms.items():
            self.digests[which] = (self.digests[which] + digest(words, row)) % PRIME
        wide = values.astype(np.uint64)
        self._words += int(wide.sum(dtype=np.uint64))
        self._squares += int((wide * wide).sum(dtype=np.uint64))
        finite = np.isfinite(numbers)
        self._nonfinite += int(numbers.size - np.count_nonzero(finite))
        left_out = ~(np.abs(np.where(finite, numbers, np.inf)) < sketches.LIMIT)
        if left_out.any():
            self._excluded += int(left_out.sum())
            self._marks += sketches.lanes(left_out.astype(np.float64), row).reshape(-1, sketches.MARKS).sum(0)
        self._sums += sketches.lanes(np.where(left_out, 0.0, numbers), row)
        kept = numbers[finite]
        if kept.size:
            self._most, self._least = max(self._most, float(kept.max())), min(self._least, float(kept.min()))
            self._total += float(kept.sum())
            self._sum_of_squares += float(kept @ kept)

    def finish(self, count: int) -> Digested:
        sums, marks = self._sums.astype(np.float32), self._marks.astype(np.float32)
        found = tuple(self.digests)
        if not self._has_values:
            found = (found[BITS], *[NOT_KNOWN] * (COUNT - 1))
        elif self._dtype == "bfloat16":
            found = (*found[: VALUE + 1], found[VALUE], found[VALUE], NOT_KNOWN)
        return Digested(
            found, _in_any_order(self._words, self._squares), self._is_exact, self._nonfinite, self._most, self._least,
            self._total / max(count, 1), math.sqrt(self._sum_of_squares),
            Sketch(sums, self._excluded, marks if self._excluded else None),
        )  # fmt: skip


def _canonical(values: Words) -> Words:
    """The words of float32, with one zero and one NaN."""
    words = values.view(np.uint32)
    words = np.where(values == 0, np.uint32(0), words)
    return np.where(np.isnan(values), _NAN, words)
