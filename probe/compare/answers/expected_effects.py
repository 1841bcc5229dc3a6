"""The effect that a difference is expected to have, and the call at which it would show."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from probe.common.dump.naming import parse
from probe.compare.result import Difference

LEAST_EXPECTED = 0.1
"""The effect that a difference is expected to have where no number tells: a shape, a missing layer, a mask. A guess."""
LEAST_OF_ARGUMENT = 1e-3
"""The same of a plain argument: two ways to compute one function, as GELU by its tanh, or an epsilon beside a variance.

What it does depends on values, so that half the digits of float32 would show it, and those of a short type do not.
"""
VISIBLE = 2.0
"""The ratio of an effect that shows to what values differ by, where the values themselves are compared. A guess."""


class Apart(NamedTuple):
    """The amount by which values differ for other reasons where an effect is looked for."""

    size: float
    """The relative difference, or the relative error of elements."""
    ratio: float
    """The ratio of an effect that shows to it."""


class Expected(NamedTuple):
    """The relative size that an effect is expected to have."""

    size: float
    is_choice: bool = False
    """True of an argument that tells a module which way to go: a truth value, a text, a whole number."""


def least_of_choices(
    found: Iterable[tuple[Difference, Expected | None, Apart | None]],
) -> dict[tuple[str, ...], Apart]:
    """The size of effect that shows for each choice, where it would show best.

    The layers of a model go one way. Where it makes no difference in the first one, it makes none in the next, in which
    values differ by more for other reasons.
    """
    least: dict[tuple[str, ...], Apart] = {}
    for difference, expected, apart in found:
        if expected is not None and expected.is_choice and apart is not None:
            key = choice_of(difference)
            least[key] = min(least.get(key, apart), apart, key=lambda each: each.ratio * each.size)
    return least


def choice_of(difference: Difference) -> tuple[str, ...]:
    """The choice that an argument of a module makes, with the class of the module."""
    parsed = parse(difference.record)
    kind = "" if parsed is None else parsed.base.rpartition(".")[2]
    return kind, difference.item.removeprefix(difference.record), difference.reason


def of_numbers(one: float, other: float) -> float:
    """The effect that two values of one argument are expected to make: as much as they differ, absolutely or not."""
    size, apart = max(abs(one), abs(other)), abs(one - other)
    if not (math.isfinite(size) and size):
        return LEAST_OF_ARGUMENT
    return min(LEAST_OF_ARGUMENT, apart, apart / size)
