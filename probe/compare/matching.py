"""Which item of the golden dump belongs to which of the target.

The key is the item's name. Backward records are numbered anew, on both sides, in the order in which they appear:
recomputation changes the numbers of backward calls, and what was recomputed here need not be so there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.common.naming import BACKWARD, api_name, module_name
from probe.compare.name_mapping import NameMapping
from probe.compare.reading import Dump
from probe.compare.records import Item, Record


class Call(NamedTuple):
    """A record with its items and the name it is matched by."""

    record: Record
    key: str
    items: list[Item]


def calls(dump: Dump, renumber: bool = True) -> list[Call]:
    """The records of `dump`, flattened, with their keys."""
    seen: dict[str, int] = {}
    found = []
    for record in dump:
        key = record.name
        parsed = record.parsed if renumber and BACKWARD in key else None
        if parsed is not None and parsed.direction == BACKWARD:
            number = seen.get(parsed.base, 0)
            seen[parsed.base] = number + 1
            spell = module_name if parsed.is_module else api_name
            key = spell(parsed.base, number, BACKWARD)
        found.append(Call(record, key, dump.items(record)))
    return found


class Pair(NamedTuple):
    """An item and its match; one of the two may be missing."""

    target: Item | None
    golden: Item | None
    record: str
    golden_record: str | None
    notes: tuple[str, ...] = ()


def by_name(target: list[Call], golden: list[Call], mapping: NameMapping | None = None) -> Iterator[Pair]:
    """Every item of the target in its order, then every item that only the golden side has in its order."""
    mapping = mapping or NameMapping()
    index: dict[str, tuple[Item, str]] = {}
    for call in golden:
        start = len(call.record.name)
        for item in call.items:
            index[call.key + item.name[start:]] = item, call.record.name
    own_names = None if mapping.items is None else _own_names(golden)
    used: set[int] = set()
    for call in target:
        name = call.record.name
        key = mapping.record(call.key)
        for item in call.items:
            suffix = mapping.suffix(name, item)
            match = None if suffix is None else index.get(key + suffix)
            if own_names is not None and mapping.items is not None and item.name in mapping.items:
                match = own_names.get(mapping.items[item.name])
            if match is None:
                yield Pair(item, None, name, None)
            else:
                used.add(id(match[0]))
                yield Pair(item, match[0], name, match[1])
    for item, record in index.values():
        if id(item) not in used:
            yield Pair(None, item, record, record)


def _own_names(golden: list[Call]) -> dict[str, tuple[Item, str]]:
    return {item.name: (item, call.record.name) for call in golden for item in call.items}
