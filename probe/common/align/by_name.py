"""The pairs of items of a target and a golden dump, by their names.

The key is the item's name. Backward records are numbered anew, on both sides, in the order in which they appear:
recomputation changes the numbers of backward calls, and what was recomputed here need not be so there."""

from __future__ import annotations

from probe.common.align.calls import KeyedCall
from probe.common.align.name_mapping import NameMapping
from probe.common.align.row import Row
from probe.common.dump.reading.records import Item


def by_name(target: list[KeyedCall], golden: list[KeyedCall], mapping: NameMapping | None = None) -> list[Row]:
    """Every item of the target in its order, then every item that only the golden side has in its order.

    The rows say what belongs together and nothing else.
    """
    mapping = mapping or NameMapping()
    index: dict[str, dict[str, tuple[Item, str]]] = {}
    for call in golden:
        name = call.record.name
        index[call.key] = {item.name[len(name) :]: (item, name) for item in call.items}
    own_names = None if mapping.items is None else _own_names(golden)
    used: set[int] = set()
    rows: list[Row] = []
    for call in target:
        name, key = call.record.name, mapping.record(call.key)
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


def _own_names(golden: list[KeyedCall]) -> dict[str, tuple[Item, str]]:
    return {item.name: (item, call.record.name) for call in golden for item in call.items}
