"""The records of two dumps with the keys they are matched by."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from probe.common.dump.naming import BACKWARD, api_name, module_name
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Item, Record


class KeyedCall(NamedTuple):
    """A record with its items and the name it is matched by."""

    record: Record
    key: str
    items: list[Item]


Calls = tuple[list[KeyedCall], list[KeyedCall]]
"""The calls of target and golden side."""


def calls(target: Dump, golden: Dump, renumbered: tuple[bool, bool] = (True, True), release: bool = False) -> Calls:
    """The records of both dumps, flattened, with their keys: their names, or those that `keys` gives to `renumbered`.

    A record that stands in the same words under the same name in both, with the same sketches, has one list of items:
    they are made once.

    Args:
        target, golden: the dumps.
        renumbered: true of target and golden side, if their keys are those that `keys` gives.
        release: free the memory of the records of both dumps, each as soon as it is not needed.
    """
    names = [[record.name for record in dump] for dump in (target, golden)]
    # Nearly all runs that are compared make the same calls.
    if names[0] == names[1] and renumbered[0] == renumbered[1]:
        mine = theirs = keys(target) if renumbered[0] else names[0]
    else:
        mine, theirs = (keys(dump) if new else own for dump, own, new in zip((target, golden), names, renumbered))
    others = {record.name: record for record in target}
    has_same_text = [name in others and record.has_same_text(others[name]) for name, record in zip(names[1], golden)]
    have_same_sketches = _SameSketches(target, golden)
    if release and all(has_same_text) and have_same_sketches.of_all:
        golden.release()
    of_target = [KeyedCall(record, key, target.items(record)) for record, key in zip(target, mine)]
    if release:
        target.release()
    twins = {call.record.name: call for call in of_target}
    of_golden = []
    for record, key, is_same in zip(golden, theirs, has_same_text):
        twin = twins.get(record.name)
        if twin is not None and is_same and have_same_sketches(twin.items):
            items = twin.items
        else:
            items = golden.items(record)
            if twin is not None:
                _share_names(items, twin.items)
        of_golden.append(KeyedCall(record, key, items))
    if release:
        golden.release()
    return of_target, of_golden


class _SameSketches:
    """Tells if items have the same sketches and makers in two dumps."""

    def __init__(self, target: Dump, golden: Dump) -> None:
        self._tables = [next((record.sketches for record in dump), None) for dump in (target, golden)]

    def __call__(self, items: Iterable[Item]) -> bool:
        target, golden = self._tables
        if target is None or golden is None or self.of_all:
            return self.of_all
        return all(target.has_same(item.name, golden) for item in items)

    @cached_property
    def of_all(self) -> bool:
        """True of all items."""
        target, golden = self._tables
        return target is golden or (target is not None and golden is not None and target.is_same(golden))


def _share_names(items: Iterable[Item], others: Iterable[Item]) -> None:
    """Let items have the same text as name, and not an equal one: of a long dump that saves many megabytes."""
    for item, other in zip(items, others):
        if item.name == other.name:
            item.name = other.name


def keys(records: Iterable[Record]) -> list[str]:
    """The keys by which records are matched: their names, and for backward records a number of our own."""
    seen: dict[str, int] = {}
    found = []
    for record in records:
        key = record.name
        parsed = record.parsed if BACKWARD in key else None
        if parsed is not None and parsed.direction == BACKWARD:
            number = seen.get(parsed.base, 0)
            seen[parsed.base] = number + 1
            spell = module_name if parsed.is_module else api_name
            key = spell(parsed.base, number, BACKWARD)
        found.append(key)
    return found
