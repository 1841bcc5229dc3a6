"""The values that two programs hold, wherever they hold them: names and pairs of calls do not matter."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import SAFETY, extent
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.peers.random_error import random_error
from probe.compare.divergence.same_values import Contents, allowed_difference, common_roundoff
from probe.compare.divergence.two_programs.graph import rounds

TARGET, GOLDEN = 0, 1

SPREAD = 3.0
"""The factor within which statistics tell the relative error of elements; see `random_error`.

What a right run returns has at most 2.6 times the median error of its tensors: of 18 runs of nine networks in two
precisions, of which nothing here was chosen. Of 18 runs of packages it is 1.9.
"""
COARSE = 1e-3
"""The tolerance from which on a difference that agreement would hide is no evidence by itself; that of float16 is."""


class HeldValues:
    """The tensors of the forward calls of both sides, found by their statistics.

    Args:
        target, golden: what calls take and return.
    """

    def __init__(self, target: Sequence[Item], golden: Sequence[Item]) -> None:
        self._sides = target, golden

    @cached_property
    def shows_from(self) -> float:
        """The relative difference that the statistics of tensors which agree may have."""
        return allowed_difference(*self._sides)

    @cached_property
    def roundoff(self) -> float:
        """The unit roundoff of the coarsest type in common use, of which casts bring values into tensors of others."""
        return common_roundoff(*self._sides)

    @property
    def are_coarse(self) -> bool:
        """True if types round so much that a value which agrees says little, and one which does not says as little."""
        return self.shows_from > COARSE

    def is_elsewhere(self, item: Item, side: int, usual: float) -> bool | None:
        """True if the other side has these values; ``None`` if they are no evidence.

        Args:
            item: a tensor of `side`.
            side: the side.
            usual: the relative error of elements that is usual where types are short.
        """
        if extent(item.shape).elements > 1:
            contents = self._contents[1 - side]
            nearest = contents.nearest(item)
            if nearest is None:
                return contents.has(item)
            error = error_of(item, nearest) if self.are_coarse else None
            # Statistics of a short type are near each other where values are not.
            return error is None or error <= SAFETY * max(usual, roundoff_of(item, nearest))
        # A number that both have may be one by chance: a count, a loss that hardly depends on it.
        return None if type(item.max) is not float or self._has_number(item.max, 1 - side) else False

    def error(self, item: Item, side: int) -> float | None:
        """The relative error of the elements of a tensor of `side` beside the nearest one of the other side.

        ``None`` if that has none that is near, or if statistics do not tell.
        """
        nearest = self.nearest(item, side)
        return None if nearest is None else error_of(item, nearest)

    def nearest(self, item: Item, side: int) -> Item | None:
        """The nearest tensor of the other side to one of `side`, if one is near."""
        return self._contents[1 - side].nearest(item)

    def _has_number(self, number: float, side: int) -> bool:
        numbers = self._numbers[side]
        allowed = self.shows_from * abs(number)
        position = bisect_left(numbers, number - allowed)
        return position < len(numbers) and numbers[position] <= number + allowed

    @cached_property
    def _numbers(self) -> tuple[list[float], list[float]]:
        """The numbers that are tensors of one element on either side, sorted."""
        target, golden = (
            sorted(item.max for item in items if type(item.max) is float and extent(item.shape).elements <= 1)
            for items in self._sides
        )
        return target, golden

    @cached_property
    def _contents(self) -> tuple[Contents, Contents]:
        target, golden = self._sides
        return Contents(target, self.shows_from), Contents(golden, self.shows_from)


def roundoff_of(one: Item, other: Item) -> float:
    """The unit roundoff of the coarser of two tensors."""
    return max(unit_roundoff(one.dtype), unit_roundoff(other.dtype))


def error_of(item: Item, nearest: Item) -> float | None:
    """The relative error of elements by which two tensors with the same values differ; at least what rounding adds.

    ``None`` if statistics do not tell it, as of one number.
    """
    found = None if extent(item.shape).elements < 2 or not rounds(item) else random_error(item, nearest)
    return None if found is None else max(found, roundoff_of(item, nearest))


def least_shown(item: Item, allowed: float) -> float:
    """The relative size from which on a difference shows in statistics that agree within `allowed`.

    Of independent errors of size e in n elements the statistics show e / sqrt(n), of either sign, and e^2 / 2, which is
    at most a half.
    """
    of_square = math.sqrt(2 * allowed) if 2 * allowed < 1 else math.inf
    return min(allowed * math.sqrt(max(extent(item.shape).elements, 1)), of_square)
