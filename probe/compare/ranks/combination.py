"""A result as a combination of the tensors of several ranks: their sum, mean, one of them, or the sum of some.

A sketch is linear: that of a sum is the sum of the sketches. So 64 numbers a rank decide it, whatever the sizes are,
and what a reduction of float32 or bfloat16 rounds bounds how far off it may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics.rounding import lost_in_sum

Sums = NDArray[np.float64]
"""The 64 sums of a sketch, shape ``[64]``."""

_SAFETY = 4.0
"""The factor between the rounding errors that are estimated and those that are allowed."""
_SKETCH = 2.0**-22
"""The relative error of a sketch: four roundings to float32, of a part of it, of its sums and of the result."""
_MOST_RANKS = 8
"""Ranks of which every group is tried: 255 groups."""


class Combination(NamedTuple):
    """A sum of the tensors of some ranks, times a factor."""

    ranks: tuple[int, ...]
    factor: float


def total(parts: Mapping[int, Sums], ranks: Sequence[int]) -> Sums:
    """The sketch of the sum of the tensors of some ranks."""
    found: Sums = np.sum([parts[rank] for rank in ranks], axis=0)
    return found


def fits(result: Sums, parts: Mapping[int, Sums], what: Combination, unit: float) -> bool:
    """True if the result is this combination, up to the rounding of a dtype with unit roundoff `unit`."""
    whole = total(parts, what.ranks)
    size, sizes = float(np.linalg.norm(whole)), [float(np.linalg.norm(parts[rank])) for rank in what.ranks]
    # The partial sums are rounded, and the product with the factor.
    lost = lost_in_sum(len(sizes), unit)
    rounding = math.hypot(lost.of_terms * math.hypot(*sizes), lost.of_sum * size) + unit * size
    allowed = abs(what.factor) * _SAFETY * (rounding + _SKETCH * sum(sizes))
    return float(np.linalg.norm(result - what.factor * whole)) <= allowed


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
    for candidates in _candidates(tuple(parts), own):
        found = [each for each in candidates if fits(result, parts, each, unit)]
        if found:
            return found
    scaled = scaled_sum(result, parts, tuple(parts), unit)
    return [] if scaled is None else [scaled]


def scaled_sum(result: Sums, parts: Mapping[int, Sums], ranks: tuple[int, ...], unit: float) -> Combination | None:
    """The sum over some ranks with the factor that fits best; ``None`` if none does, or the sum is zero."""
    whole = total(parts, ranks)
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
    every = tuple(parts)
    count = len(every)
    sizes = range(count - 1, 1, -1) if count <= _MOST_RANKS else ()
    groups = [every, (own,), *((rank,) for rank in every if rank != own)]
    groups += [group for size in sizes for group in combinations(every, size)]
    return next((found for group in groups if (found := scaled_sum(result, parts, group, unit)) is not None), None)


def _candidates(ranks: tuple[int, ...], own: int) -> Iterator[list[Combination]]:
    count = len(ranks)
    whole = [Combination(ranks, 1.0), Combination(ranks, 1 / count)]
    yield [*whole, Combination((own,), 1.0)] if own in ranks else whole
    yield [Combination(ranks, float(count)), Combination(ranks, 1 / count**2)]
    yield [Combination((rank,), 1.0) for rank in ranks if rank != own]
    if count > _MOST_RANKS:
        return
    for size in range(count - 1, 1, -1):
        groups = list(combinations(ranks, size))
        yield [Combination(group, factor) for group in groups for factor in (1.0, 1 / size)]


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
    return f"{text} over ranks {', '.join(map(str, what.ranks))} alone: another group"
