"""The calls and items of two dumps as they are matched.

The keys of a call, its position in the module tree, a pair of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Optional

import msgspec

from probe.common.dump.naming import BACKWARD, ParsedName, api_name, module_name, parse, record_name
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import INPUT, OUTPUT, Item, Record
from probe.common.dump.reading.sources import Tree

PASS, WARNING, ERROR = "pass", "warning", "error"
"""The levels of a line or a note."""
NAMES_DIFFER = "note: The names differ; accuracy of fuzzily matched data may be affected."


class Row(msgspec.Struct, gc=False):
    """One item of the target and what it was matched with, or one that only the golden side has.

    Both are one object where the two dumps say the same of a record.
    """

    record: str
    """The record of the target; of the golden side where the target has none."""
    target: Optional[Item]  # noqa: UP045 (evaluated, on Python 3.9 too)
    golden: Optional[Item]  # noqa: UP045
    golden_record: Optional[str] = None  # noqa: UP045
    metrics: tuple[Any, ...] = ()
    """One metric for each column that the mode has; a text where there is no number."""
    notes: tuple[str, ...] = ()
    """Remarks of matching and measuring: ``error: ...``, ``warning: ...`` or ``note: ...``."""
    result: str = ""
    """The result of the row by the rules of the comparison; empty until they were asked."""
    messages: tuple[str, ...] = ()
    requires_grad_consistent: bool = True
    relative_difference: Optional[float] = None  # noqa: UP045
    """The amount by which the two tensors differ, relative to the larger one; ``None`` until that is asked for."""
    explained: Optional[float] = None  # noqa: UP045
    """The part of it that inputs and rounding explain; ``None`` where that was not asked for."""
    judged: bool = True
    """True if the values in the files could be held against each other; if not, their statistics alone were."""


class CallPair:
    """A call of the target and its counterpart, or a call that one side alone made.

    Args:
        record, golden_record: ``None`` where that side did not make the call.
        rows: the items of both, paired.
        how: the reason why one side alone made the call, as `note_reasons` finds it; empty where there is none.
    """

    __slots__ = ("golden_record", "how", "record", "rows")

    def __init__(self, record: str | None, golden_record: str | None, rows: list[Row], how: str = "") -> None:
        self.record, self.golden_record, self.rows, self.how = record, golden_record, rows, how


# --- calls


class KeyedCall(msgspec.Struct, frozen=True, gc=False):
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


# --- side


OF_PARAMETERS = ("parameter:", "gradient:")
"""The beginnings of makers that are a parameter or its gradient."""


class Found:
    """The pairs of calls so far, by their numbers."""

    def __init__(self) -> None:
        self.partner: dict[int, int] = {}
        self.back: dict[int, int] = {}

    def add(self, one: int, other: int) -> None:
        """Pair two calls, if neither has a partner yet."""
        if one not in self.partner and other not in self.back:
            self.partner[one], self.back[other] = other, one

    def has(self, number: int, call: int) -> bool:
        """True if a call of a side has a partner."""
        return call in (self.back if number else self.partner)


class Side:
    """The calls of one run.

    Args:
        calls: the calls in order.
        tree: the call around each of them; ``None`` without construct.json.
        framework: the framework of the run.
    """

    def __init__(self, calls: Sequence[KeyedCall], tree: Tree | None, framework: str) -> None:
        self.calls, self.framework = calls, framework
        self.tree: Tree = tree or {}
        self.parsed: list[ParsedName | None] = [parse(call.record.name) for call in calls]
        self.index = {call.record.name: number for number, call in enumerate(calls)}

    def of_direction(self, direction: str) -> Iterator[tuple[int, ParsedName]]:
        """The calls in one direction, in order."""
        for number, parsed in enumerate(self.parsed):
            if parsed is not None and parsed.direction == direction:
                yield number, parsed

    @cached_property
    def modules(self) -> dict[str, dict[str, list[int]]]:
        """The calls of modules by path and direction, in order."""
        found: dict[str, dict[str, list[int]]] = {}
        for number, parsed in enumerate(self.parsed):
            if parsed is not None and parsed.is_module:
                found.setdefault(path_of(parsed.base), {}).setdefault(parsed.direction, []).append(number)
        return found

    def around(self, name: str) -> Iterator[str]:
        """The calls around a call, innermost first."""
        above = self.tree.get(name)
        while above:
            yield above
            above = self.tree.get(above)

    def other_way(self, number: int, direction: str) -> int | None:
        """The forward or backward call that belongs to a call."""
        parsed = self.parsed[number]
        return None if parsed is None else self.index.get(record_name(parsed._replace(direction=direction)))

    def number_of_call(self, number: int) -> int:
        """The number of times that the function or module was called before."""
        parsed = self.parsed[number]
        return 0 if parsed is None else parsed.number

    def result(self, number: int) -> Item | None:
        """The first tensor that a call returned."""
        return next((item for item in self.calls[number].items if item.state == OUTPUT and item.is_tensor), None)

    def given(self, number: int) -> list[Item]:
        """The tensors that a call took."""
        return [item for item in self.calls[number].items if item.state == INPUT and item.is_tensor]


def path_of(base: str) -> str:
    """The path of a module; of a model that is one layer its class, since nothing is the top."""
    parts = base.split(".")
    return ".".join(parts[1:-1]) or parts[-1]
