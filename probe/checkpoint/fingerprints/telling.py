"""Sentences on a tensor that differs, of which a side is a fingerprint: a factor, another order, NaN, where it begins.

The same sentences as those of `probe.checkpoint.holding`, as far as sketches and digests tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from probe.checkpoint.fingerprints.entry import Entry, Fingerprinted, Reordered, entry_of, rows_of_cuts
from probe.checkpoint.sampling import positions_of_sample, sample
from probe.checkpoint.stored import Tensor
from probe.common.numerics.digests import NOT_KNOWN, PRIME, VALUE
from probe.common.numerics.formats import format_of
from probe.common.numerics.rounding import decoded

_RESOLUTION = 2.0**-21
"""The relative error of a sketch whose 64 sums are rounded to float32, and added in another order: eight roundings."""
_FEWEST = 256
"""Numbers below which two tensors may have one norm by chance; a guess."""
_APART = 0.05
"""The distance, relative to the norm, from which on numbers are in another order rather than changed. A guess."""


def changes(one: Tensor, other: Tensor) -> Iterator[str]:
    """A change of all numbers of a parameter, or of their order."""
    left, right = entry_of(one), entry_of(other)
    if left.told.nonfinite != right.told.nonfinite:
        count = left.told.nonfinite
        verb = "is" if count == 1 else "are"
        yield f"{count} of {one.size} values {verb} NaN or infinite (golden: {right.told.nonfinite})"
        return
    for entry, words in ((left, "all values are zero"), (right, "all golden values are zero")):
        if entry.told.most == 0 == entry.told.least:
            yield words
            return
    factor = _factor(left, right)
    if factor:
        yield f"{factor:.6g} times the golden"
    elif left.told.elements == right.told.elements:
        yield _order(one, other) or "its numbers are the golden ones in another order"
    elif has_same_range(left, right):
        yield "norm, largest and smallest are the golden ones: its numbers seem to be in another order"
    else:
        yield from _where(left, right)


def _factor(left: Entry, right: Entry) -> float:
    """The number by which all numbers of the second are multiplied; 0 if there is none."""
    one, other = (each.told.sketch.sums.astype(np.float64) for each in (left, right))
    if not left.told.norm or not right.told.norm:
        return 0.0
    factor = math.copysign(left.told.norm / right.told.norm, float(one @ other))
    digits = [found.digits for each in (left, right) if (found := format_of(each.dtype)) is not None]
    allowed = max(2.0 ** (2 - min(digits)), _RESOLUTION)
    if abs(factor - 1) < 4 * allowed or float(np.linalg.norm(one - factor * other)) > allowed * left.told.norm:
        return 0.0
    ends = sorted((factor * right.told.most, factor * right.told.least))
    close = all(math.isclose(a, b, rel_tol=allowed) for a, b in zip(sorted((left.told.most, left.told.least)), ends))
    return factor if close else 0.0


def has_same_range(left: Entry, right: Entry) -> bool:
    """True if norm and extremes are equal but for rounding, while the sketches differ by more.

    Roundings of n numbers change a norm by about the unit roundoff over the root of n; ten times that is allowed.
    """
    one, other = left.told, right.told
    size = math.prod(left.shape)
    forms = [format_of(each.dtype) for each in (left, right)]
    if size < _FEWEST or any(form is None or not form.rounds for form in forms) or not other.norm:
        return False
    unit = max(form.unit for form in forms if form is not None)
    if abs(one.norm / other.norm - 1) > 10 * max(unit / math.sqrt(size), _RESOLUTION):
        return False
    if float(np.linalg.norm(one.sketch.sums - other.sketch.sums)) < _APART * other.norm:
        return False
    return all(math.isclose(a, b, rel_tol=2 * unit) for a, b in ((one.most, other.most), (one.least, other.least)))


# --- order


def _order(one: Tensor, other: Tensor) -> str:
    """Another order of rows or columns in words, as the sampled rows show it; empty if they do not."""
    if isinstance(one, Fingerprinted) and isinstance(other, Fingerprinted):
        return ""
    held, values, of_first = (one, other, True) if isinstance(one, Fingerprinted) else (other, one, False)
    if not isinstance(held, Fingerprinted) or len(held.shape) != 2 or format_of(held.dtype) is None:
        return ""
    rows, columns = positions_of_sample(held.shape)
    few = sample(held).reshape(len(rows), len(columns))
    whole = decoded(values.read().reshape(-1), values.dtype).reshape(values.shape).astype(np.float64)
    for noun, own, lines in (("row", few, whole[:, columns]), ("column", few.T, whole[rows].T)):
        at = rows if noun == "row" else columns
        places = [np.flatnonzero((lines == line).all(1)) for line in own]
        if not all(len(each) for each in places) or all(place in each for place, each in zip(at, places)):
            continue
        words = _words(held, values, at, [int(each[0]) for each in places], noun, of_first)
        if words:
            return words
    return ""


def _words(held: Fingerprinted, values: Tensor, at: list[int], places: list[int], noun: str, of_first: bool) -> str:
    count = held.shape[0] if noun == "row" else held.shape[1]
    shift = (at[0] - places[0]) % count
    moved = np.arange(count)
    if all((place + shift) % count == each for each, place in zip(at, places)) and shift:
        order = (moved - shift) % count
        if noun == "column" or entry_of(Reordered(values, order)).told.digests[VALUE] == held.entry.told.digests[VALUE]:
            by = shift if of_first else count - shift
            by = by if by <= count // 2 else by - count
            half = ", so that its halves are swapped" if 2 * by == count else ""
            return f"{noun}s are rolled by {by}{half}"
    if all(place == count - 1 - each for each, place in zip(at, places)):
        return f"{noun}s are in reverse order"
    mine, its = next((each, place) for each, place in zip(at, places) if each != place)
    mine, its = (mine, its) if of_first else (its, mine)
    return f"{noun}s in another order: {noun} {mine} is the golden {noun} {its}"


def _where(left: Entry, right: Entry) -> Iterator[str]:
    """The rows that differ, if some of those whose digests are held agree."""
    parts = list(equal_parts(left, right))
    differ = [(first, last) for first, last, same in parts if not same]
    if len(differ) < len(parts) and differ:
        first, last = differ[0][0], differ[-1][1]
        yield f"what differs is in rows {first} to {last - 1}; the others are the golden ones"


def equal_parts(left: Entry, right: Entry) -> Iterator[tuple[int, int, bool]]:
    """Ranges of rows of two tensors of one shape, and whether their values are the same."""
    whole = left.told.digests[VALUE], right.told.digests[VALUE]
    cuts = zip(rows_of_cuts(left.shape), left.cuts, right.cuts)
    rows = left.shape[0] if left.shape else 1
    known = [(0, 0, 0), *(each for each in cuts if NOT_KNOWN not in each[1:]), (rows, *whole)]
    for (first, a, b), (last, c, d) in zip(known, known[1:]):
        yield first, last, (c - a) % PRIME == (d - b) % PRIME
