"""Tensors of two runs that hold the same values, told by their statistics alone.

Until the runs part, what corresponds holds the same numbers, whatever it is called. Order of elements and shape do not
matter: statistics do not change with them. Constants say nothing of where they came from and are left out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import unit_roundoff

_LEAST = 2e-5
"""The relative difference that is nothing: six digits of float32 survive a whole network."""
_UNITS = 6.0
"""The same of a coarser type, in its unit roundoff."""
_SHARE = 0.1
"""The share of a run's tensors that a type has if the others are computed from what it rounded."""
_NEIGHBOURS = 8
"""The number of tensors with nearly the same norm, and with nearly the same maximum, that are looked at on either side.
"""


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
        self.allowed = _allowed([[item for item, _ in side.values()] for side in sides])
        """The relative difference that two tensors with the same values may have."""
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
        mine, theirs = _orders(target), _orders(golden)
        nearest = {one: _nearest(one, theirs, self.allowed) for one in target}
        found = {each for each in nearest.values() if each is not None}
        back = {other: _nearest(other, mine, self.allowed) for other in found}
        return [(one, other) for one, other in nearest.items() if other is not None and back[other] == one]


_Order = tuple[list[tuple[int, float]], list[_Values]]
"""Values in the order of a key, with the keys. Normalised tensors have one norm, and probabilities one maximum."""

_ORDERS: tuple[Callable[[_Values], tuple[int, float]], ...] = (
    lambda values: (values.elements, values.norm),
    lambda values: (values.elements, values.largest),
)


def _orders(side: list[_Values]) -> list[_Order]:
    ordered = (sorted(side, key=key) for key in _ORDERS)
    return [(list(map(key, each)), each) for key, each in zip(_ORDERS, ordered)]


def _nearest(values: _Values, orders: list[_Order], allowed: float) -> _Values | None:
    best, nearest = math.inf, None
    size = max(abs(values.largest), abs(values.smallest))
    for key, (keys, others), scale in zip(_ORDERS, orders, (values.norm, 3 * size)):
        own = key(values)
        position = bisect_left(keys, own)
        above = range(position, min(position + _NEIGHBOURS, len(others)))
        below = range(position - 1, max(position - _NEIGHBOURS, 0) - 1, -1)
        for near in (above, below):
            for index in near:
                elements, number = keys[index]
                # Twice, because the larger of the two sizes counts.
                if elements != own[0] or abs(number - own[1]) > 2 * allowed * scale:
                    break
                distance = _distance(values, others[index])
                if distance < best:
                    best, nearest = distance, others[index]
    return nearest if best <= allowed else None


class Contents:
    """The values that the tensors of one run hold, as far as they say where they came from.

    Args:
        items: the tensors.
        allowed: the relative difference up to which two tensors hold the same values.
    """

    def __init__(self, items: Iterable[Item], allowed: float) -> None:
        found: dict[_Values | str, Item] = {}
        for item in items:
            values = _values(item)
            if values is not None:
                found.setdefault(values, item)
        self._known = found
        self._orders = _orders([each for each in found if isinstance(each, _Values)])
        self.allowed = allowed

    def has(self, item: Item) -> bool | None:
        """True if a tensor of the run holds the values of `item`; ``None`` if these are no evidence."""
        return None if _values(item) is None else self.nearest(item) is not None

    def nearest(self, item: Item) -> Item | None:
        """The tensor of the run that holds the values of `item`, as nearly as any does."""
        values = _values(item)
        if isinstance(values, _Values) and values not in self._known:
            values = _nearest(values, self._orders, self.allowed)
        return None if values is None else self._known.get(values)


def allowed_difference(target: Iterable[Item], golden: Iterable[Item]) -> float:
    """The relative difference up to which tensors of two runs hold the same values."""
    return _allowed([[item for item in side if _values(item) is not None] for side in (target, golden)])


def common_roundoff(target: Iterable[Item], golden: Iterable[Item]) -> float:
    """The unit roundoff of the coarsest type of two runs that is not used in a few places only."""
    return max(_roundoff([item for item in side if _values(item) is not None]) for side in (target, golden))


def _allowed(sides: Iterable[Iterable[Item]]) -> float:
    return max(_LEAST, _UNITS * max(map(_roundoff, sides)))


def _roundoff(items: Iterable[Item]) -> float:
    """The unit roundoff of the coarsest type that is not used in a few places only."""
    types = Counter(item.dtype for item in items)
    many = _SHARE * sum(types.values())
    return max((unit_roundoff(dtype) for dtype, number in types.items() if number >= many), default=0.0)


def _values(item: Item) -> _Values | str | None:
    """The mark that tells a tensor from others; ``None`` of constants, of whole numbers, and of what is not finite."""
    norm, largest, smallest, mean = item.norm, item.max, item.min, item.mean
    if not unit_roundoff(item.dtype):
        return None
    if norm is None:
        return item.md5
    if not type(norm) is type(largest) is type(smallest) is type(mean) is float:
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
