"""The pairs of items of a target and a golden dump, by their names.

The key is the item's name. Backward records are numbered anew, on both sides, in the order in which they appear:
recomputation changes the numbers of backward calls, and what was recomputed here need not be so there."""

from __future__ import annotations

from itertools import repeat

from probe.common.align.calls import KeyedCall
from probe.common.align.name_mapping import NameMapping
from probe.common.align.row import Row
from probe.common.dump.reading.records import Item


def by_name(target: list[KeyedCall], golden: list[KeyedCall], mapping: NameMapping | None = None) -> list[Row]:
    """Every item of the target in its order, then every item that only the golden side has in its order.

    The rows say what belongs together and nothing else.
    """
    mapping = mapping or NameMapping()
    whole = _whole(target, golden) if mapping.keeps_names else {}
    matched = set(map(id, whole.values()))
    index: dict[str, dict[str, tuple[Item, str]]] = {}
    for call in golden:
        if id(call) not in matched:
            name = call.record.name
            index[call.key] = {item.name[len(name) :]: (item, name) for item in call.items}
    own_names = None if mapping.items is None else _own_names(golden)
    used: set[int] = set()
    rows: list[Row] = []
    for call in target:
        name, key = call.record.name, mapping.record(call.key)
        other = whole.get(call.key)
        if other is not None:
            rows.extend(map(Row, repeat(name), call.items, other.items, repeat(other.record.name)))
            continue
        there = index.get(key, _NOTHING)
        for item in call.items:
            suffix = mapping.suffix(name, item)
            match = None if suffix is None else there.get(suffix)
            if own_names is not None and mapping.items is not None and item.name in mapping.items:
                match = own_names.get(mapping.items[item.name])
            if match is None:
                rows.append(Row(name, item, None))
            else:
                used.add(id(match[0]))
                rows.append(Row(name, item, match[0], match[1]))
    for items in index.values():
        for item, record in items.values():
            if id(item) not in used:
                rows.append(Row(record, None, item, record))
    return rows


_NOTHING: dict[str, tuple[Item, str]] = {}


def _whole(target: list[KeyedCall], golden: list[KeyedCall]) -> dict[str, KeyedCall]:
    """The calls of the golden side that have the items of the target's call, one for one, by their key."""
    there = {call.key: call for call in golden}
    found: dict[str, KeyedCall] = {}
    for call in target:
        other = there.get(call.key)
        if other is not None and (call.items is other.items or _has_same_names(call, other)):
            found[call.key] = other
    return found


def _has_same_names(call: KeyedCall, other: KeyedCall) -> bool:
    """True if what follows the record in the names of their items is the same."""
    if len(call.items) != len(other.items):
        return False
    names, other_names = [item.name for item in call.items], [item.name for item in other.items]
    if call.record.name == other.record.name:
        return names == other_names
    start, other_start = len(call.record.name), len(other.record.name)
    return [name[start:] for name in names] == [name[other_start:] for name in other_names]


def _own_names(golden: list[KeyedCall]) -> dict[str, tuple[Item, str]]:
    return {item.name: (item, call.record.name) for call in golden for item in call.items}
