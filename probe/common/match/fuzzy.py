"""Matching for networks whose call numbers shift: a record is matched with the next one of its kind.

Both dumps are walked side by side. A record is looked for among those of the other side that are still waiting, the
oldest first; once two are matched, what waited before them on either side has no match any more, so that order is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Optional

from probe.common.dump.naming import parse
from probe.common.dump.reading.sources import Tree
from probe.common.match.calls import Call
from probe.common.match.row import Row

NAMES_DIFFER = "note: The names differ; accuracy of fuzzily matched data may be affected."


Trees = tuple[Optional[Tree], Optional[Tree]]
Marks = tuple[Mapping[str, Hashable], Mapping[str, Hashable]]


def kind(record: str) -> str:
    """The name of a record without the number of its call."""
    parsed = parse(record)
    return record if parsed is None else f"{parsed.base} {parsed.direction}"


class _Waiting:
    """The records of one side that were read and have no match yet."""

    def __init__(self) -> None:
        self._first = 0
        self._places: dict[Hashable, deque[int]] = {}

    def add(self, key: Hashable, place: int) -> None:
        self._places.setdefault(key, deque()).append(place)

    def oldest(self, key: Hashable) -> int | None:
        places = self._places.get(key)
        while places and places[0] < self._first:
            places.popleft()
        return places[0] if places else None

    def leave_up_to(self, place: int) -> None:
        self._first = place + 1


def match_in_order(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The positions in two lists of kinds that are matched, in order."""
    waiting_target, waiting_golden = _Waiting(), _Waiting()
    found = []
    for place in range(max(len(target), len(golden))):
        target_kind = target[place] if place < len(target) else None
        golden_kind = golden[place] if place < len(golden) else None
        if target_kind is not None:
            waiting_target.add(target_kind, place)
        if golden_kind is not None:
            waiting_golden.add(golden_kind, place)
        pair = None
        if target_kind is not None and (older := waiting_golden.oldest(target_kind)) is not None:
            pair = place, older
        elif golden_kind is not None and (older := waiting_target.oldest(golden_kind)) is not None:
            pair = older, place
        if pair is not None:
            found.append(pair)
            waiting_target.leave_up_to(pair[0])
            waiting_golden.leave_up_to(pair[1])
    return found


def _places(side: list[Call], tree: Tree | None) -> list[str]:
    """Where each call is made: the path of the module around it, or what else the tree has there."""
    around = (tree or {}).get
    found = []
    for call in side:
        parent = around(call.record.name) or ""
        parsed = parse(parent)
        # Of a module neither its class nor the number of its call.
        found.append(parent if parsed is None else parsed.base.rpartition(".")[0])
    return found


def _kinds_in_places(
    target: list[Call], golden: list[Call], trees: Trees, marks: Marks
) -> tuple[list[Hashable], list[Hashable]]:
    """The kinds of calls, with the module around each where both sides have it, and their marks.

    A call in a module that both sides have is in none that only one of them has.
    """
    places = _places(target, trees[0]), _places(golden, trees[1])
    shared = set(places[0]) & set(places[1])
    mine, theirs = (
        [
            (kind(call.record.name), place if place in shared else "", known.get(call.record.name))
            for call, place in zip(side, of_side)
        ]
        for side, of_side, known in zip((target, golden), places, marks)
    )
    return list(mine), list(theirs)


def by_kind(
    target: list[Call], golden: list[Call], trees: Trees = (None, None), marks: Marks = ({}, {})
) -> Iterator[Row]:
    """Every item of the target in its order, then every item that only the golden side has in its order.

    The rows say what belongs together, with a note, and nothing else.

    Args:
        target, golden: the calls of both sides.
        trees: their call trees, where calls of modules that both sides have are matched inside of these alone.
        marks: what else has to be the same in calls that are matched, by their records.
    """
    matched = dict(match_in_order(*_kinds_in_places(target, golden, trees, marks)))
    used: set[int] = set()
    for place, call in enumerate(target):
        name = call.record.name
        other = golden[matched[place]] if place in matched else None
        if other is None:
            for item in call.items:
                yield Row(name, item, None)
            continue
        golden_name = other.record.name
        notes = (NAMES_DIFFER,) if name != golden_name else ()
        by_suffix = {item.name[len(golden_name) :]: item for item in other.items}
        for item in call.items:
            match = by_suffix.get(item.name[len(name) :])
            if match is None:
                yield Row(name, item, None)
            else:
                used.add(id(match))
                yield Row(name, item, match, golden_name, (), notes)
    for call in golden:
        for item in call.items:
            if id(item) not in used:
                yield Row(call.record.name, None, item, call.record.name)
