"""Tensors of two runs that hold the same values, told by their statistics alone.

Until the runs part, what corresponds holds the same numbers, whatever it is called. Order of elements and shape do not
matter: statistics do not change with them. Constants say nothing of where they came from and are left out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from probe.common.dump.reading.records import Item
from probe.common.metrics.error_bounds import coarsest, extent, unit_roundoff

_LEAST = 2e-5
"""The relative difference that is nothing: six digits of float32 survive a whole network."""
_UNITS = 6.0
"""The same of a coarser type, in its unit roundoff."""
_NEIGHBOURS = 8
"""How many tensors with nearly the same norm are looked at on either side of a tensor."""


class _Values(NamedTuple):
    elements: int
    norm: float
    largest: float
    smallest: float
    mean: float


Label = int
"""Stands for one content: tensors of both runs with the same label hold the same values."""


class SameValues:
    """Knows which tensors of two runs hold the same values.

    Args:
        target, golden: tensors of the two runs.
    """

    def __init__(self, target: Iterable[Item], golden: Iterable[Item]) -> None:
        mine, theirs = list(target), list(golden)
        roundoff = coarsest([*mine, *theirs])
        self._allowed = max(_LEAST, _UNITS * roundoff)
        sides = [dict.fromkeys(filter(None, map(_values, items))) for items in (mine, theirs)]
        self._labels = {values: label for label, values in enumerate(sides[0]) if values in sides[1]}
        rest = [[each for each in side if each not in self._labels and isinstance(each, _Values)] for side in sides]
        for one, other in self._nearest_pairs(*rest):
            self._labels[one] = self._labels[other] = len(sides[0]) + len(self._labels)

    def label(self, item: Item | None) -> Label | None:
        """The label of a tensor; ``None`` where the other run has nothing like it."""
        values = None if item is None else _values(item)
        return None if values is None else self._labels.get(values)

    def _nearest_pairs(self, target: list[_Values], golden: list[_Values]) -> list[tuple[_Values, _Values]]:
        """Pairs of which each is the nearest to the other."""
        mine, theirs = sorted(target), sorted(golden)
        nearest = {one: self._nearest(one, theirs) for one in mine}
        back = {other: self._nearest(other, mine) for other in {each for each in nearest.values() if each is not None}}
        return [(one, other) for one, other in nearest.items() if other is not None and back[other] == one]

    def _nearest(self, values: _Values, others: list[_Values]) -> _Values | None:
        place = bisect_left(others, values)
        around = others[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS]
        distances = [(_distance(values, other), other) for other in around if other.elements == values.elements]
        distance, nearest = min(distances, default=(math.inf, values))
        return nearest if distance <= self._allowed else None


def _values(item: Item) -> _Values | str | None:
    """What tells a tensor from others; ``None`` of constants, of whole numbers, and of what is not finite."""
    if item.norm is None:
        return item.md5
    numbers = item.norm, item.max, item.min, item.mean
    if not unit_roundoff(item.dtype) or not all(type(number) is float and math.isfinite(number) for number in numbers):
        return None
    if item.max == item.min or not item.norm:
        return None
    return _Values(extent(item.shape).elements, *numbers)


def _distance(one: _Values, other: _Values) -> float:
    size = max(abs(one.largest), abs(one.smallest), abs(other.largest), abs(other.smallest))
    of_extremes = max(abs(one.largest - other.largest), abs(one.smallest - other.smallest)) / (3 * size)
    norm = max(one.norm, other.norm)
    return max(of_extremes, abs(one.norm - other.norm) / norm, abs(one.mean - other.mean) * math.sqrt(one.elements) / norm)
