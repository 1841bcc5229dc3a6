"""Calls of other names or numbers matched as msProbe does: the next one of its kind, or the n-th of a layer."""

from __future__ import annotations

from collections.abc import Iterator

from probe.common.align.call_order import match_in_order
from probe.common.align.calls import Calls, KeyedCall
from probe.common.align.layer_names import UNMATCHED, Scope, ScopedRecords, translate
from probe.common.align.mapping import LayerMapping
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
