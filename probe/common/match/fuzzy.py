"""Matching for networks whose call numbers shift: a record meets the next one of its kind, whatever its number.

Both dumps are walked side by side. A record is looked for among those of the other side that are still waiting, the
oldest first; once two have met, what waited before them on either side has no match any more, so that order is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from probe.common.dump.naming import parse
from probe.common.match.calls import Call
from probe.common.match.row import Row

NAMES_DIFFER = "note: The names differ; accuracy of fuzzily matched data may be affected."


def kind(record: str) -> str:
    """The name of a record without the number of its call."""
    parsed = parse(record)
    return record if parsed is None else f"{parsed.base} {parsed.direction}"


class _Waiting:
    """The records of one side that were read and have not met any."""

    def __init__(self) -> None:
        self._first = 0
        self._places: dict[str, deque[int]] = {}

    def add(self, key: str, place: int) -> None:
        self._places.setdefault(key, deque()).append(place)

    def oldest(self, key: str) -> int | None:
        places = self._places.get(key)
        while places and places[0] < self._first:
            places.popleft()
        return places[0] if places else None

    def leave_up_to(self, place: int) -> None:
        self._first = place + 1


def meetings(target: list[str], golden: list[str]) -> list[tuple[int, int]]:
    """Which places of two lists of kinds meet, in order."""
    waiting_n, waiting_b = _Waiting(), _Waiting()
    found = []
    for place in range(max(len(target), len(golden))):
        here_n = target[place] if place < len(target) else None
        here_b = golden[place] if place < len(golden) else None
        if here_n is not None:
            waiting_n.add(here_n, place)
        if here_b is not None:
            waiting_b.add(here_b, place)
        met = None
        if here_n is not None and (older := waiting_b.oldest(here_n)) is not None:
            met = place, older
        elif here_b is not None and (older := waiting_n.oldest(here_b)) is not None:
            met = older, place
        if met is not None:
            found.append(met)
            waiting_n.leave_up_to(met[0])
            waiting_b.leave_up_to(met[1])
    return found


def by_kind(target: list[Call], golden: list[Call]) -> Iterator[Row]:
    """Every item of the target in its order, then every item that only the golden side has in its order.

    The rows say what belongs together, with a note, and nothing else.
    """
    met = dict(meetings([kind(call.record.name) for call in target], [kind(call.record.name) for call in golden]))
    used: set[int] = set()
    for place, call in enumerate(target):
        name = call.record.name
        other = golden[met[place]] if place in met else None
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
