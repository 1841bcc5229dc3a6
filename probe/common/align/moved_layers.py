"""The layers of two runs of one program that correspond, also where numbers in a list have moved.

A layer that is inserted moves the numbers of all that follow, and leaves none of the shorter list alone. If numbers
have moved, layers that correspond share more parameters, or are more often of one kind, than those of one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from probe.common.align.contents import Contents, Label
from probe.common.align.layer_pairs import Partners, network, parameters_of
from probe.common.align.side import Side

_Score = tuple[int, int, int]
"""The parameters that layers share, minus the pairs of other kinds, and the pairs of one number."""


@dataclass
class _Node:
    """A name in the paths of modules."""

    path: str = ""
    """The path of the module that is called so; empty if none was called."""
    inside: dict[str, _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class _Numbered:
    """The facts on all layers inside of a number of a list."""

    number: str
    parameters: frozenset[Label | None]
    kinds: frozenset[tuple[str, str]]

    def score(self, other: _Numbered) -> _Score:
        """The reasons why two correspond."""
        return (
            len(self.parameters & other.parameters),
            -self.kinds.isdisjoint(other.kinds),
            self.number == other.number,
        )


def moved_layers(sides: tuple[Side, Side]) -> Partners:
    """The golden path of each path of the target that has a counterpart."""
    lists = _Lists(sides)
    found: Partners = {}
    waiting = [(_tree(sides[0].modules), _tree(sides[1].modules))]
    while waiting:
        one, other = waiting.pop()
        if one.path and other.path:
            found[one.path] = other.path
        names = {name: name for name in one.inside if name in other.inside} | lists.moved(one, other)
        waiting += [(one.inside[name], other.inside[there]) for name, there in names.items() if there]
    return found


def _tree(paths: Iterable[str]) -> _Node:
    top = _Node()
    for path in paths:
        node = top
        for name in path.split("."):
            node = node.inside.setdefault(name, _Node())
        node.path = path
    return top


class _Lists:
    """Looks for the numbers that have moved."""

    def __init__(self, sides: tuple[Side, Side]) -> None:
        self._networks = network(sides[0]), network(sides[1])

    @cached_property
    def _contents(self) -> Contents:
        target, golden = self._networks
        return Contents(parameters_of(target), parameters_of(golden))

    def moved(self, one: _Node, other: _Node) -> dict[str, str]:
        """The golden numbers of those of a list, empty for a layer that is alone; nothing if numbers have not moved."""
        numbers = [sorted(filter(str.isdecimal, node.inside), key=int) for node in (one, other)]
        if not all(numbers) or len(numbers[0]) == len(numbers[1]):
            return {}
        mine, theirs = (
            [self._numbered(side, number, node.inside[number]) for number in numbers[side]]
            for side, node in enumerate((one, other))
        )
        if len(mine) < len(theirs):
            pairs = [(mine[i], theirs[j]) for i, j in enumerate(_places(mine, theirs))]
        else:
            pairs = [(mine[j], theirs[i]) for i, j in enumerate(_places(theirs, mine))]
        stayed = [(each, another) for each in mine for another in theirs if each.number == another.number]
        if _sum(pairs)[:2] <= _sum(stayed)[:2]:
            return {}
        return {**dict.fromkeys(numbers[0], ""), **{each.number: another.number for each, another in pairs}}

    def _numbered(self, side: int, number: str, node: _Node) -> _Numbered:
        inside = {}
        waiting = [("", node)]
        while waiting:
            place, each = waiting.pop()
            waiting += [(f"{place}.{name}", below) for name, below in each.inside.items()]
            if each.path in self._networks[side]:
                inside[place] = self._networks[side][each.path]
        labels = frozenset(self._contents.label(item) for item in parameters_of(inside)) - {None}
        return _Numbered(number, labels, frozenset((place, layer.kind) for place, layer in inside.items()))


def _sum(pairs: Iterable[tuple[_Numbered, _Numbered]]) -> _Score:
    total = 0, 0, 0
    for one, other in pairs:
        total = _added(total, one.score(other))
    return total


def _added(one: _Score, other: _Score) -> _Score:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _places(shorter: Sequence[_Numbered], longer: Sequence[_Numbered]) -> list[int]:
    """The places in the longer list of all of the shorter one, in order, with the highest sum of scores."""
    extra = len(longer) - len(shorter)
    # The highest sum so far if at most so many were inserted before, and the places, the last one first.
    best: list[tuple[_Score, Any]] = [((0, 0, 0), None)] * (extra + 1)
    for index, one in enumerate(shorter):
        for inserted, (total, places) in enumerate(best):
            place = index + inserted
            best[inserted] = _added(total, one.score(longer[place])), (place, places)
            if inserted and best[inserted - 1][0] >= best[inserted][0]:
                best[inserted] = best[inserted - 1]
    found = []
    places = best[-1][1]
    while places is not None:
        place, places = places
        found.append(place)
    return found[::-1]
