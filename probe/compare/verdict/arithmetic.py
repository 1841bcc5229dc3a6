"""64 signed sums of two tensors that differ: a factor, a term that one side adds, another order of elements.

A sketch is linear, so that each of these is arithmetic on sketches, exact to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent, is_number
from probe.common.numerics.formats import unit_roundoff

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from probe.compare.verdict.two_runs import TwoRuns

_ROUNDINGS = 16.0
"""Roundings in a row that a value may have gone through, with a safety; a guess."""
_SUMS = 1e-5
"""The relative difference of norms, and of means relative to the root mean square, that sums make; a guess."""
_LARGEST_REST = 0.3
"""The rest, relative to a difference, from which on nothing is known of it; a guess."""


def sums(runs: TwoRuns, side: int, items: Sequence[Item]) -> NDArray[Any] | None:
    """The sketches of items of one side in float64; ``None`` without sketches."""
    if runs.tables is None or not items:
        return None
    import numpy as np

    return runs.tables[side].sums([item.name for item in items]).astype(np.float64)


def is_constant(item: Item) -> bool:
    """True if all elements of a tensor are one number, as far as its statistics are known."""
    return item.max is not None and item.max == item.min


def noise(items: Iterable[Item | None], allowed: float = 0.0) -> float:
    """The relative size of what rounding leaves in a tensor, given what else is explained."""
    types = [unit_roundoff(item.dtype) for item in items if item is not None and item.is_tensor]
    return max(_ROUNDINGS * max([*types, unit_roundoff("float32")]), allowed)


class Factor(NamedTuple):
    """The number by which one tensor is the other."""

    value: float
    rest: float
    """The relative norm of what is left."""


def factor(mine: NDArray[Any], theirs: NDArray[Any], rounding: float) -> Factor | None:
    """The factor between two sketches; ``None`` if it is no multiple, or the same."""
    square, norm = float(theirs @ theirs), math.sqrt(float(mine @ mine))
    if not square or not norm or not math.isfinite(square + norm):
        return None
    value = float(mine @ theirs) / square
    left = mine - value * theirs
    rest = math.sqrt(float(left @ left)) / norm
    if rest > min(rounding, 0.05) or abs(value - 1.0) <= max(4 * rounding, 4 * rest, 1e-4):
        return None
    # One number alone, or equal ones, are a multiple of any.
    if (abs(mine) > 1e-3 * abs(mine).max()).sum() < 4:
        return None
    return Factor(value, rest)


def in_words(value: float, shapes: Iterable[Sequence[int]], tolerance: float) -> str:
    """A factor as a whole number, a fraction or a root, where it is one of these."""
    sizes = sorted({size for shape in shapes for size in shape if size > 1})
    near = max(tolerance, 1e-6)
    sign, size = ("-", -value) if value < 0 else ("", value)
    for over in (False, True):
        number = 1.0 / size if over else size
        whole = round(number)
        if (whole > 1 or (whole == 1 and sign)) and math.isclose(number, whole, rel_tol=near):
            return f"{sign}1/{whole}" if over and whole > 1 else f"{sign}{whole}"
        for each in sizes:
            if math.isclose(number, math.sqrt(each), rel_tol=near):
                return f"{sign}1/sqrt({each})" if over else f"{sign}sqrt({each})"
    from fractions import Fraction  # Asked of few comparisons.

    fraction = Fraction(size).limit_denominator(64)
    if fraction.denominator > 1 and math.isclose(float(fraction), size, rel_tol=min(near, 1e-4)):
        return f"{sign}{fraction}"
    return f"{value:.6g}"


def is_reordered(target: Item, golden: Item) -> bool:
    """True if two tensors that differ have the same elements: equal maximum, minimum, mean and norm."""
    roundoffs = [unit_roundoff(item.dtype) for item in (target, golden)]
    # Maximum and minimum are elements; norm and mean are rounded to the dtype as well.
    of_elements = 0.0 if roundoffs[0] == roundoffs[1] else max(roundoffs)
    tolerance = _SUMS + max(roundoffs)
    pairs = [(target.max, golden.max), (target.min, golden.min), (target.mean, golden.mean), (target.norm, golden.norm)]
    if not all(is_number(value) and math.isfinite(value) for pair in pairs for value in pair):
        return False
    if extent(target.shape).elements != extent(golden.shape).elements or golden.max == golden.min:
        return False
    of_max, of_min, of_mean, of_norm = (abs(one - other) for one, other in pairs)
    rms = golden.norm / math.sqrt(max(1, extent(golden.shape).elements))
    return bool(
        of_max <= of_elements * abs(golden.max) and of_min <= of_elements * abs(golden.min)
        and of_norm <= tolerance * golden.norm and of_mean <= tolerance * rms
    )  # fmt: skip


class Term(NamedTuple):
    """A tensor that one side adds and the other does not."""

    item: Item
    side: int
    """The side on which the tensor was found."""
    value: float
    """The factor with which the target has more of it."""


def term(
    runs: TwoRuns, pair: tuple[Item, Item], candidates: tuple[Sequence[Item], Sequence[Item]], rounding: float
) -> Term | None:
    """The tensor of which the difference of two tensors is a multiple; ``None`` if none is, or several might be.

    Args:
        runs: both runs.
        pair: the tensors of target and golden run.
        candidates: the tensors in reach, of the target and of the golden run.
        rounding: the relative size of what rounding leaves.
    """
    mine, theirs = sums(runs, 0, pair[:1]), sums(runs, 1, pair[1:])
    if mine is None or theirs is None:
        return None
    import numpy as np

    difference = (mine - theirs)[0]
    size = math.sqrt(float(difference @ difference))
    largest = math.sqrt(max(float(mine[0] @ mine[0]), float(theirs[0] @ theirs[0])))
    if not size or not math.isfinite(size):
        return None
    least = max(rounding * largest / size, 1e-5)
    if least > _LARGEST_REST:
        return None
    best: list[tuple[float, float, Item, int]] = []
    for side, items in enumerate(candidates):
        table = sums(runs, side, items)
        if table is None:
            continue
        squares = np.square(table).sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            factors = table @ difference / squares
            rests = np.sqrt(np.square(difference - factors[:, None] * table).sum(1)) / size
        best += [
            (float(rest), float(value), item, side)
            for rest, value, item in zip(rests, factors, items)
            if rest <= least and math.isfinite(value)
        ]
    if not best:
        return None
    # Exact ones first: 1, -1 and whole numbers.
    best.sort(key=lambda each: (abs(each[1] - round(each[1])) > 4 * least or not round(each[1]), each[0]))
    _, value, item, side = best[0]
    return Term(item, side, value)
