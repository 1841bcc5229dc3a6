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
        # By identity, so that each tensor is looked at once.
        sides = [
            {id(item): (item, values) for item in items if (values := _values(item)) is not None}
            for items in (target, golden)
        ]
        self._allowed = max(_LEAST, _UNITS * coarsest(item for side in sides for item, _ in side.values()))
        mine, theirs = ({values for _, values in side.values()} for side in sides)
        labels = {values: label for label, values in enumerate(mine & theirs)}
        rest = [[each for each in side if each not in labels and isinstance(each, _Values)] for side in (mine, theirs)]
        for one, other in self._nearest_pairs(*rest):
            labels[one] = labels[other] = len(mine) + len(labels)
        self._labels = {key: labels[values] for side in sides for key, (_, values) in side.items() if values in labels}

    def label(self, item: Item | None) -> Label | None:
        """The label of one of the tensors; ``None`` where the other run has nothing like it."""
        return None if item is None else self._labels.get(id(item))

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
    norm, largest, smallest, mean = item.norm, item.max, item.min, item.mean
    if norm is None:
        return item.md5
    if not (type(norm) is type(largest) is type(smallest) is type(mean) is float and unit_roundoff(item.dtype)):
        return None
    total = norm + largest + smallest + mean
    if total - total or largest == smallest or not norm:
        return None
    return _Values(extent(item.shape).elements, norm, largest, smallest, mean)


def _distance(one: _Values, other: _Values) -> float:
    size = max(abs(one.largest), abs(one.smallest), abs(other.largest), abs(other.smallest))
    of_extremes = max(abs(one.largest - other.largest), abs(one.smallest - other.smallest)) / (3 * size)
    norm = max(one.norm, other.norm)
    of_mean = abs(one.mean - other.mean) * math.sqrt(one.elements) / norm
    return max(of_extremes, abs(one.norm - other.norm) / norm, of_mean)
