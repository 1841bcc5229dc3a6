"""Calls of other names or numbers matched as msProbe does: the next one of its kind, or the n-th of a layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from probe.common.align.by_name import by_name
from probe.common.align.calls import Calls, KeyedCall
from probe.common.align.layer_names import UNMATCHED, Scope, ScopedRecords, translate
from probe.common.align.mapping import LayerMapping
from probe.common.align.name_mapping import NameMapping
from probe.common.align.row import NAMES_DIFFER, Row
from probe.common.dump.naming import parse


def by_kind(target: list[KeyedCall], golden: list[KeyedCall]) -> Iterator[Row]:
    """Every item of the target in its order, matched with the next call of its kind, whatever numbers they have."""
    kinds = [[_kind(call.key) for call in side] for side in (target, golden)]
    matched = dict(match_in_order(*kinds))
    for index, call in enumerate(target):
        name = call.record.name
        other = golden[matched[index]] if index in matched else None
        by_suffix = {} if other is None else {item.name[len(other.record.name) :]: item for item in other.items}
        for item in call.items:
            match = by_suffix.get(item.name[len(name) :])
            if match is None or other is None:
                yield Row(name, item, None)
            else:
                notes = (NAMES_DIFFER,) if name != other.record.name else ()
                yield Row(name, item, match, other.record.name, (), notes)


def _kind(record: str) -> str:
    """The name of a record without the number of its call."""
    parsed = parse(record)
    return record if parsed is None else f"{parsed.base} {parsed.direction}"


class _Unmatched:
    """The elements of one side that were read and have no match yet."""

    def __init__(self) -> None:
        self._first = 0
        self._indexes: dict[str, deque[int]] = {}

    def add(self, key: str, index: int) -> None:
        self._indexes.setdefault(key, deque()).append(index)

    def oldest(self, key: str) -> int | None:
        indexes = self._indexes.get(key)
        while indexes and indexes[0] < self._first:
            indexes.popleft()
        return indexes[0] if indexes else None

    def leave_up_to(self, index: int) -> None:
        self._first = index + 1


def match_in_order(target: Sequence[str], golden: Sequence[str]) -> list[tuple[int, int]]:
    """The indexes of keys that correspond, each the next of its kind, both ascending.

    Both are walked side by side. A key is looked for among those of the other side that are still waiting, the oldest
    first; once two correspond, what waited before them on either side does not any more.
    """
    waiting_target, waiting_golden = _Unmatched(), _Unmatched()
    found = []
    for index in range(max(len(target), len(golden))):
        target_kind = target[index] if index < len(target) else None
        golden_kind = golden[index] if index < len(golden) else None
        if target_kind is not None:
            waiting_target.add(target_kind, index)
        if golden_kind is not None:
            waiting_golden.add(golden_kind, index)
        pair = None
        if target_kind is not None and (older := waiting_golden.oldest(target_kind)) is not None:
            pair = index, older
        elif golden_kind is not None and (older := waiting_target.oldest(golden_kind)) is not None:
            pair = older, index
        if pair is not None:
            found.append(pair)
            waiting_target.leave_up_to(pair[0])
            waiting_golden.leave_up_to(pair[1])
    return found


def by_layer(calls: Calls, mapping: LayerMapping) -> dict[str, str]:
    """Every item of the target and its counterpart's name, or ``N/A``: the n-th call of a layer with the n-th one."""
    mine, theirs, rules = mapping
    by_scope = _by_scope(theirs)
    counterpart: dict[str, str] = {}
    for (path, direction, is_layer), names in _by_scope(mine).items():
        counterpart.update(zip(names, by_scope.get((translate(path, mine.classes, rules), direction, is_layer), [])))
    # Saved values are not in a tree.
    counterpart.update({call.record.name: call.record.name for call in calls[0] if call.record.name not in mine.scopes})
    there = {call.record.name: {item.name for item in call.items} for call in calls[1]}
    found: dict[str, str] = {}
    for call in calls[0]:
        name = call.record.name
        other = counterpart.get(name, UNMATCHED)
        for item in call.items:
            match = other + item.name[len(name) :]
            found[item.name] = match if match in there.get(other, ()) else UNMATCHED
    return found


def _by_scope(side: ScopedRecords) -> dict[Scope, list[str]]:
    """The records of every scope, in order."""
    found: dict[Scope, list[str]] = {}
    for name, scope in side.scopes.items():
        found.setdefault(scope, []).append(name)
    return found


# --- pairs made by hand

RecordPairs = Sequence[tuple[str, str]]
"""Names of records of the target and of the golden side; names of no record say nothing."""


def without(calls: Calls, pairs: RecordPairs) -> Calls:
    """The calls that are left to be matched otherwise."""
    in_pairs = _in_pairs(calls, pairs)
    mine, theirs = set(in_pairs), set(in_pairs.values())
    target, golden = calls
    return [call for call in target if call.record.name not in mine], [
        call for call in golden if call.record.name not in theirs
    ]


def with_pairs(rows: Iterable[Row], calls: Calls, pairs: RecordPairs, across_frameworks: bool) -> list[Row]:
    """`rows` and those of the pairs: items of the target in its order, then what the golden side has alone in its own.

    Args:
        rows: those of the calls that `without` leaves.
        calls: all calls.
        pairs: the pairs.
        across_frameworks: true if parameters have the names of two frameworks.
    """
    target, golden = calls
    mapping = NameMapping(parameters=across_frameworks)
    in_pairs = _in_pairs(calls, pairs)
    there = {call.record.name: call for call in golden}
    of_target: dict[str, list[Row]] = {}
    alone: dict[str, list[Row]] = {}
    for row in rows:
        (alone if row.target is None else of_target).setdefault(row.record, []).append(row)
    for call in target:
        if call.record.name in in_pairs:
            other = there[in_pairs[call.record.name]]
            key = call.record.name
            for row in by_name(
                [KeyedCall(call.record, key, call.items)], [KeyedCall(other.record, key, other.items)], mapping
            ):
                (alone if row.target is None else of_target).setdefault(row.record, []).append(row)
    found = [row for call in target for row in of_target.get(call.record.name, ())]
    return found + [row for call in golden for row in alone.get(call.record.name, ())]


def _in_pairs(calls: Calls, pairs: RecordPairs) -> dict[str, str]:
    """The pairs of which both sides have a record."""
    mine, theirs = ({call.record.name for call in side} for side in calls)
    return {one: other for one, other in pairs if one in mine and other in theirs}
