"""What is usual: a call is held against its like, the same call in the other layers.

For each kind of call two numbers are fitted over its like, before and after: the carry ``g``, how much of an input's
distance it passes on, and its own rounding ``r``. What it returns is then usually ``g sqrt(in² + r²)`` apart. A fault is
the call that leaves its like, and not those behind it, whose inputs already carry it. That is defined where the inputs
are exact, and compares the first layer with the last.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable
from statistics import median
from typing import NamedTuple

from probe.compare.verdict.facts import Call
from probe.compare.verdict.two_runs import TwoRuns

FEWEST = 3
"""The other members that a group needs to tell what is usual."""
FACTOR = 4.0
"""How far right members leave their like at most: 3.6 in 43 pairs of deep networks in two precisions, where faults reach
8 to 1,200. The smallest whole number above it."""
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
    """What is usual of a value, by its like."""

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
        self._groups: dict[Hashable, list[Judged]] = {}
        for value in values:
            self._groups.setdefault(value.key, []).append(value)
        self._fits: dict[Hashable, tuple[list[float], list[float]]] = {}

    def usual(self, value: Judged) -> Usual | None:
        """What the like of a value tell of it; ``None`` where there are too few."""
        group = self._groups.get(value.key, [])
        if len(group) <= FEWEST:
            return None
        own = median(_own(each) for each in group if each is not value)
        carry = max(
            1.0, median(each.distance / math.hypot(each.given, own) for each in group if each is not value)
        )  # fmt: skip
        return Usual(carry * math.hypot(value.given, own), len(group) - 1)

    def is_shared(self, value: Judged) -> bool:
        """True if the like of a value is as far apart: it is how the two programs compute."""
        others = [each.distance for each in self._groups[value.key] if each is not value]
        return bool(others) and FACTOR * median(others) >= value.distance


def _own(value: Judged) -> float:
    return max(math.sqrt(max(0.0, value.distance**2 - value.given**2)), value.floor)


def role(runs: TwoRuns, call: Call, suffix: str) -> Hashable:
    """What calls that are alike share: the place in the model but for the numbers of layers, and what is judged."""
    if call.parsed is None:
        return call.name, suffix
    if call.is_module:
        return _INDEX.sub(".#", call.parsed.base), call.direction, suffix
    around = _INDEX.sub(".#", runs.parent(call) or "")
    return around, call.parsed.base, call.direction, _position(runs, call), suffix


def _position(runs: TwoRuns, call: Call) -> int:
    """The position of a function's call among those of the same function in its module."""
    return runs.positions.get(call.index, 0)
