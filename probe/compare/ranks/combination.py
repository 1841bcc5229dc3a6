"""A result as a combination of the tensors of several ranks: their sum, mean, one of them, or the sum of some.

A sketch is linear: that of a sum is the sum of the sketches. So 64 numbers a rank decide it, whatever the sizes are,
and what a reduction of float32 or bfloat16 rounds bounds how far off it may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics.rounding import lost_in_sum
from probe.common.ranges import ranges

Sums = NDArray[np.float64]
"""The 64 sums of a sketch, shape ``[64]``."""

_SAFETY = 4.0
"""The factor between the rounding errors that are estimated and those that are allowed."""
_SKETCH = 2.0**-22
"""The relative error of a sketch: four roundings to float32, of a part of it, of its sums and of the result."""
_FLOAT64 = 1 + 1e-9
"""The room for roundings of a sum of 64 products in float64, which are 64 * 2^-53 at most."""
_MOST_RANKS = 8
"""Ranks of which every group is tried: 255 groups."""


class Combination(NamedTuple):
    """A sum of the tensors of some ranks, times a factor."""

    ranks: tuple[int, ...]
    factor: float


class _Whole(NamedTuple):
    """The sketch of the sum of the tensors of some ranks, and what bounds its rounding."""

    sums: Sums
    size: float
    spread: float
    """The root of the sum of the squares of the norms."""
    sizes: float
    """The sum of the norms."""


class Sketches(dict[int, Sums]):
    """The sketches of what each rank gave, and their sums over some ranks, with which many results are compared."""

    def __init__(self, parts: Mapping[int, Sums]) -> None:
        super().__init__(parts)
        self._wholes: dict[tuple[int, ...], _Whole] = {}

    @classmethod
    def of(cls, parts: Mapping[int, Sums]) -> Sketches:
        """The sketches themselves, if these are any."""
        return parts if isinstance(parts, Sketches) else cls(parts)

    def whole(self, ranks: tuple[int, ...]) -> _Whole:
        """The sum of the tensors of some ranks."""
        found = self._wholes.get(ranks)
        if found is None:
            sums: Sums = np.sum([self[rank] for rank in ranks], axis=0)
            sizes = [float(np.linalg.norm(self[rank])) for rank in ranks]
            found = _Whole(sums, float(np.linalg.norm(sums)), math.hypot(*sizes), sum(sizes))
            self._wholes[ranks] = found
        return found

    @cached_property
    def _rows(self) -> tuple[list[int], Sums, Sums]:
        """The ranks, their sketches as rows, and the norms of these."""
        rows = np.array(list(self.values()))
        return list(self), rows, np.sqrt(np.einsum("ij,ij->i", rows, rows))

    def near(self, result: Sums, unit: float) -> list[int]:
        """The ranks of which the result may be that of one alone, or a multiple of it; none that `fits` is left out.

        If `result` is `factor * part` up to the distance `share * abs(factor) * size`, the multiple nearest to it is no
        further away, and has at least ``1 - share`` times that factor.
        """
        ranks, rows, sizes = self._rows
        share = float(_allowed(1.0, 1, 1.0, 1.0, 1.0, unit))
        if share >= 1:
            return ranks
        squares = sizes * sizes
        with np.errstate(all="ignore"):
            factors = np.where(squares > 0, rows @ result / squares, 0)
            allowed = _FLOAT64 * share / (1 - share) * np.abs(factors) * sizes
            # No element is further away than all together.
            off = np.abs(result - factors[:, np.newaxis] * rows).max(1)
        return [ranks[index] for index in np.flatnonzero(~(off > allowed)).tolist()]


def _allowed(factor: Any, count: int, size: Any, spread: Any, sizes: Any, unit: float) -> Any:
    """The distance that rounding may make: the partial sums are rounded, and the product with the factor."""
    lost = lost_in_sum(count, unit)
    rounding = np.hypot(lost.of_terms * spread, lost.of_sum * size) + unit * size
    return factor * _SAFETY * (rounding + _SKETCH * sizes)


def fits(result: Sums, parts: Mapping[int, Sums], what: Combination, unit: float) -> bool:
    """True if the result is this combination, up to the rounding of a dtype with unit roundoff `unit`."""
    whole = Sketches.of(parts).whole(what.ranks)
    allowed = _allowed(abs(what.factor), len(what.ranks), whole.size, whole.spread, whole.sizes, unit)
    return bool(np.linalg.norm(result - what.factor * whole.sums) <= allowed)


def largest_distance(all_sums: Sequence[Sums]) -> float:
    """The largest distance of any two."""
    rows = np.array(list({sums.tobytes(): sums for sums in all_sums}.values()))
    if len(rows) <= _MOST_RANKS:
        return max(distance(one, other) for one in rows for other in rows)
    # Of a thousand ranks there are a million pairs: those that may be furthest apart are looked for in numpy's loops.
    sizes = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    found = 0.0
    for row, size in zip(rows, sizes):
        apart = rows - row
        with np.errstate(all="ignore"):
            far = np.sqrt(np.einsum("ij,ij->i", apart, apart)) / np.maximum(sizes, size)
        far = np.where(np.isnan(far), 0, far)
        if far.max() * _FLOAT64 >= found:
            near = np.flatnonzero(far * _FLOAT64 >= far.max()).tolist()
            found = max(found, *(max(distance(row, rows[index]), distance(rows[index], row)) for index in near))
    return found


def distance(result: Sums, expected: Sums) -> float:
    """The norm of the difference, relative to the larger of the two; 0 of two zeros."""
    largest = max(float(np.linalg.norm(result)), float(np.linalg.norm(expected)))
    return float(np.linalg.norm(result - expected)) / largest if largest else 0.0


def explanations(result: Sums, parts: Mapping[int, Sums], own: int, unit: float) -> list[Combination]:
    """The combinations that the result may be, of which the simplest are tried first; none if it is none of them.

    If several of equal simplicity fit, as where all ranks have the same tensor, all of these are given.

    Args:
        result: the sketch of what came out.
        parts: the sketches of what each rank gave.
        own: the rank that has the result; it may have given nothing.
        unit: the unit roundoff of the coarsest dtype.
    """
    parts = Sketches.of(parts)
    for candidates in _candidates(tuple(parts), own, lambda: parts.near(result, unit)):
        found = [each for each in candidates if fits(result, parts, each, unit)]
        if found:
            return found
    scaled = scaled_sum(result, parts, tuple(parts), unit)
    return [] if scaled is None else [scaled]


def scaled_sum(result: Sums, parts: Mapping[int, Sums], ranks: tuple[int, ...], unit: float) -> Combination | None:
    """The sum over some ranks with the factor that fits best; ``None`` if none does, or the sum is zero."""
    parts = Sketches.of(parts)
    whole = parts.whole(ranks).sums
    square = float(whole @ whole)
    if not square:
        return None
    factor = float(result @ whole) / square
    near = (each for each in usual_factors(len(ranks)) if abs(factor - each) <= _SAFETY * (unit + _SKETCH) * each)
    found = Combination(ranks, next(near, factor))
    return found if factor and fits(result, parts, found, unit) else None


def usual_factors(count: int) -> tuple[float, ...]:
    """The factors of a sum over ranks that have names: those of a sum, a mean, two sums and two means."""
    return 1.0, 1 / count, float(count), 1 / count**2


def origin(result: Sums, parts: Mapping[int, Sums], own: int, unit: float) -> Combination | None:
    """The sum over some ranks that the result is a multiple of, as where gradients are clipped after their reduction.

    All ranks are tried first, then the own one, another one, and groups. One number is a multiple of any other.
    """
    parts = Sketches.of(parts)
    every = tuple(parts)
    count = len(every)
    sizes = range(count - 1, 1, -1) if count <= _MOST_RANKS else ()

    def sums() -> Iterator[tuple[int, ...]]:
        yield every
        yield (own,)
        yield from ((rank,) for rank in parts.near(result, unit) if rank != own)
        for size in sizes:
            yield from combinations(every, size)

    return next((found for group in sums() if (found := scaled_sum(result, parts, group, unit)) is not None), None)


def _candidates(ranks: tuple[int, ...], own: int, near: Callable[[], Sequence[int]]) -> Iterator[list[Combination]]:
    """The combinations that are tried, the simplest first; `near` says which ranks alone are worth it."""
    count = len(ranks)
    whole = [Combination(ranks, 1.0), Combination(ranks, 1 / count)]
    yield [*whole, Combination((own,), 1.0)] if own in ranks else whole
    yield [Combination(ranks, float(count)), Combination(ranks, 1 / count**2)]
    yield [Combination((rank,), 1.0) for rank in near() if rank != own]
    if count > _MOST_RANKS:
        return
    for size in range(count - 1, 1, -1):
        groups = list(combinations(ranks, size))
        yield [Combination(group, factor) for group in groups for factor in (1.0, 1 / size)]


def listed(ranks: Sequence[int]) -> str:
    """Ranks in words, each of them if they are few.

    Example:
        >>> listed([0, 1, 2]), listed(range(9))
        ('0, 1, 2', '0-8')
    """
    return ", ".join(map(str, ranks)) if len(ranks) <= _MOST_RANKS else ranges(ranks)


def in_words(what: Combination, own: int, every: Sequence[int]) -> str:
    """A combination for people.

    Example:
        >>> in_words(Combination((0, 1), 0.25), 0, (0, 1))
        'the sum divided by the number of ranks two times'
    """
    count = len(every)
    if len(what.ranks) == 1 and count > 1:
        scaled = "" if what.factor == 1 else f", times {what.factor:.4g}"
        who = f"rank {own} itself gave: never reduced" if what.ranks == (own,) else f"rank {what.ranks[0]} gave"
        return f"what {who}{scaled}"
    words = {
        1.0: "the sum",
        1 / len(what.ranks): "the mean",
        float(count): "the sum times the number of ranks: reduced two times",
        1 / count**2: "the sum divided by the number of ranks two times",
    }
    text = words.get(what.factor, f"the sum times {what.factor:.4g}")
    if len(what.ranks) == count:
        return text
    return f"{text} over ranks {listed(what.ranks)} alone: another group"
