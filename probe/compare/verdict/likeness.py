"""Usual distances: a call is held against its like, the same call in the other layers.

For each kind of call two numbers are fitted over its like, before and after: the carry ``g``, how much of an input's
distance it passes on, and its own rounding ``r``. What it returns is then usually ``g sqrt(in² + r²)`` apart. A fault
is the call that leaves its like, and not those behind it, whose inputs already carry it. That is defined where inputs
are exact, and compares the first layer with the last.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from probe.compare.verdict.facts import Call
from probe.compare.verdict.two_runs import TwoRuns

FEWEST = 3
"""The number of other members that tell what is usual; a guess: two have no median that one fault spares."""
FACTOR = 4.0
"""The factor that right members leave their like by: 3.6 in 43 pairs of deep networks in two precisions, where faults
reach 8 to 1,200. The smallest whole number above it."""
_INDEX = re.compile(r"\.\d+(?=\.|$)")


class Judged(NamedTuple):
    """One value whose distance is judged."""

    key: Hashable
    distance: float
    given: float
    """The largest distance of what it is made from."""
    floor: float
    """The distance that rounding makes, below which no member is taken for more exact."""


class Usual(NamedTuple):
    """The usual distance of a value, by its like."""

    expected: float
    """The distance that its like would have."""
    others: int

    @property
    def limit(self) -> float:
        """The distance beyond which a value leaves its like."""
        return FACTOR * self.expected


class Likeness:
    """Groups of values that are alike, and what is usual in each.

    Args:
        values: all values that are judged.
    """

    def __init__(self, values: Iterable[Judged]) -> None:
        self._groups: dict[Hashable, _Group] = {}
        for value in values:
            # What is not finite on one side has no usual size.
            if max(value.distance, value.given) < math.inf:
                self._groups.setdefault(value.key, _Group()).values.append(value)

    def usual(self, value: Judged) -> Usual | None:
        """Tell what is usual of a value by its like; ``None`` where there are too few."""
        group = self._groups.get(value.key)
        if group is None or len(group.values) <= FEWEST or max(value.distance, value.given) == math.inf:
            return None
        own = _median_without(group.own, _own(value))
        carry = max(1.0, _median_without(group.carries(own), _carry(value, own)))
        return Usual(carry * math.hypot(value.given, own), len(group.values) - 1)

    def is_shared(self, value: Judged) -> bool:
        """True if the like of a value is as far apart: it is how the two programs compute."""
        group = self._groups.get(value.key)
        distances = [] if group is None else group.distances
        return len(distances) > 1 and FACTOR * _median_without(distances, value.distance) >= value.distance


class _Group:
    """Values that are alike, with what is asked of them in order of size: each is held against all others."""

    def __init__(self) -> None:
        self.values: list[Judged] = []
        self._carries: dict[float, list[float]] = {}

    @cached_property
    def own(self) -> list[float]:
        return sorted(map(_own, self.values))

    @cached_property
    def distances(self) -> list[float]:
        return sorted(value.distance for value in self.values)

    def carries(self, own: float) -> list[float]:
        """The share of the distance of an input that each passes on, if its own rounding is `own`."""
        found = self._carries.get(own)
        if found is None:
            found = self._carries[own] = sorted(_carry(value, own) for value in self.values)
        return found


def _median_without(values: Sequence[float], one: float) -> float:
    """The median of some numbers in order of size, of which one is left out."""
    left_out, others = bisect_left(values, one), len(values) - 1
    middle = [values[at + (at >= left_out)] for at in ((others - 1) // 2, others // 2)]
    return middle[0] if others % 2 else (middle[0] + middle[1]) / 2


def _carry(value: Judged, own: float) -> float:
    return value.distance / math.hypot(value.given, own)


def _own(value: Judged) -> float:
    return max(math.sqrt(max(0.0, value.distance**2 - value.given**2)), value.floor)


def role(runs: TwoRuns, call: Call, suffix: str) -> Hashable:
    """The key of calls that are alike: the place in the model but for the numbers of layers, and what is judged."""
    if call.parsed is None:
        return call.name, suffix
    if call.is_module:
        return _without_numbers(call.parsed.base), call.direction, suffix
    around = _without_numbers(runs.parent(call) or "")
    return around, call.parsed.base, call.direction, _position(runs, call), suffix


@lru_cache(maxsize=1024)
def _without_numbers(name: str) -> str:
    return _INDEX.sub(".#", name)


def _position(runs: TwoRuns, call: Call) -> int:
    """The position of a function's call among those of the same function in its module."""
    return runs.positions.get(call.index, 0)
