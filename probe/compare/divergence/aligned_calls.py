"""The calls of two runs side by side, in the order in which they ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Optional

from probe.common.align.call_order import Aligned, align
from probe.common.align.layers.siblings import Renumbered
from probe.common.align.row import Row
from probe.common.dump.naming import BACKWARD, FORWARD, ParsedName, is_module, parse, record_name
from probe.common.dump.reading.records import Item
from probe.common.dump.reading.sources import Tree
from probe.compare.divergence.marks import MarkedRecords, marks

_NOT_MOVED = Renumbered()

Trees = tuple[Optional[Tree], Optional[Tree]]
_ByModulePath = dict[str, list[str]]


class AlignedCall:
    """One call of the target and the call of the golden side that it is compared with.

    Args:
        record, golden_record: ``None`` where that side did not make the call.
        rows: its items, on whichever sides they are.
    """

    __slots__ = ("golden_record", "record", "rows")

    def __init__(self, record: str | None, golden_record: str | None, rows: list[Row]) -> None:
        self.record, self.golden_record = record, golden_record
        self.rows = rows


def aligned_calls(
    rows: Iterable[Row],
    golden_order: Sequence[str],
    trees: Trees,
    same_names: bool,
    by_hand: Mapping[str, str] | None = None,
    moved: Renumbered = _NOT_MOVED,
) -> list[AlignedCall]:
    """The calls of the target in order, and those that only the golden side made where they would be.

    Args:
        rows: the rows of a comparison.
        golden_order: the records of the golden side in their order.
        trees: the call trees of target and golden side.
        same_names: true if both sides use the same names for the same things. Then a call without a match was not made
            on the other side, and the numbers of those after it may have shifted, so that calls are paired by their
            order.
        by_hand: records that are a pair whatever their order is.
        moved: layers of the target whose numbers have moved.
    """
    of_target: dict[str, list[Row]] = {}
    golden_only: dict[str, list[Row]] = {}
    for row in rows:
        by_record = of_target if row.target is not None else golden_only
        found = by_record.get(row.record)
        if found is None:
            by_record[row.record] = [row]
        else:
            found.append(row)
    calls = [AlignedCall(record, _golden_record(found), found) for record, found in of_target.items()]
    calls = _in_their_modules(calls, trees, by_hand or {}) if same_names and not moved else calls
    matched = {call.golden_record for call in calls}
    if same_names and (None in matched or any(record not in matched for record in golden_only)):
        return _in_order(calls, golden_only, golden_order, trees, by_hand or {}, moved)
    return [
        AlignedCall(call.record, call.golden_record, call.rows + golden_only[call.golden_record])
        if call.golden_record in golden_only
        else call
        for call in calls
    ]


def with_golden_only(
    calls: Sequence[AlignedCall], rows: Iterable[Row], golden_order: Sequence[str]
) -> list[AlignedCall]:
    """`calls` with those that only the golden side made, each before the next one of that side with a counterpart."""
    matched = {call.golden_record for call in calls}
    alone: dict[str, list[Row]] = {}
    for row in rows:
        if row.target is None and row.record not in matched:
            alone.setdefault(row.record, []).append(row)
    waiting: list[AlignedCall] = []
    before: dict[str, list[AlignedCall]] = {}
    for record in golden_order:
        if record in alone:
            waiting.append(AlignedCall(None, record, alone[record]))
        elif record in matched and waiting:
            before[record], waiting = waiting, []
    found: list[AlignedCall] = []
    for call in calls:
        found += [*before.get(call.golden_record or "", ()), call]
    return found + waiting


def _in_their_modules(calls: list[AlignedCall], trees: Trees, by_hand: Mapping[str, str]) -> list[AlignedCall]:
    """`calls` where those of functions have a counterpart in the same module, if both sides have as many there.

    The number of such a call counts those of the whole run, so that two modules in another order exchange theirs.
    """
    there = {call.golden_record: call for call in calls if call.golden_record and call.record}
    tree, golden_tree = trees
    if not tree or not golden_tree or len(there) < len(calls):
        return calls
    if all(tree.get(call.record or "") == golden_tree.get(call.golden_record or "") for call in calls):
        return calls
    free = [call for call in calls if call.record not in by_hand]
    partners = _partners([(call.record or "", call.golden_record or "") for call in free], trees)
    found = []
    for call in calls:
        partner = partners.get(call.record or "", call.golden_record)
        if partner is None or partner == call.golden_record:
            found.append(call)
        else:
            items = [row.golden for row in there[partner].rows if row.golden is not None]
            found.append(_paired(call, partner, items))
    return found


def _partners(pairs: Sequence[tuple[str, str]], trees: Trees) -> dict[str, str]:
    """The golden record in the same module of each record of a function that has one elsewhere by its name."""
    paths = tuple({pair[side]: module_path(pair[side], trees[side]) for pair in pairs} for side in (0, 1))
    shared = set(paths[0].values()) & set(paths[1].values())
    moved: set[str] = set()
    names: dict[str, tuple[_ByModulePath, _ByModulePath]] = {}
    for pair in pairs:
        parsed = parse(pair[0])
        if parsed is None or parsed.is_module:
            continue
        kind = f"{parsed.base} {parsed.direction}"
        sides = names.setdefault(kind, ({}, {}))
        where = [paths[side][pair[side]] for side in (0, 1)]
        for side in (0, 1):
            sides[side].setdefault(where[side], []).append(pair[side])
        if where[0] != where[1] and shared.issuperset(where):
            moved.add(kind)
    found: dict[str, str] = {}
    for mine, theirs in (names[kind] for kind in moved):
        if {path: len(of_path) for path, of_path in mine.items()} == {
            path: len(of_path) for path, of_path in theirs.items()
        }:
            for path, of_path in mine.items():
                # By their numbers, since backward calls come in the opposite order.
                found.update(zip(sorted(of_path, key=_number), sorted(theirs[path], key=_number)))
    return found


def module_path(record: str, tree: Tree | None) -> str:
    """The path of the module around a call, or what else is around it.

    A backward that ran inside of nothing has the path of its forward: that of a first layer is not seen to begin.
    """
    around = (tree or {}).get
    parsed = parse(record)
    parent = around(record)
    if parent is None and parsed is not None and parsed.direction == BACKWARD:
        parent = around(record_name(ParsedName(parsed.base, parsed.number, FORWARD, parsed.is_module)), parent)
    around_it = parse(parent or "")
    return parent or "" if around_it is None or not around_it.is_module else around_it.base.rpartition(".")[0]


def _number(record: str) -> int:
    parsed = parse(record)
    return 0 if parsed is None else parsed.number


def _golden_record(rows: list[Row]) -> str | None:
    return next((row.golden_record for row in rows if row.golden_record), None)


def _in_order(
    calls: list[AlignedCall],
    golden_only: dict[str, list[Row]],
    golden_order: Sequence[str],
    trees: Trees,
    by_hand: Mapping[str, str],
    moved: Renumbered,
) -> list[AlignedCall]:
    items: dict[str, list[Item]] = {name: [] for name in golden_order}
    for call in calls:
        if call.golden_record:
            items[call.golden_record] += [row.golden for row in call.rows if row.golden is not None]
    for name, rows in golden_only.items():
        items[name] += [row.golden for row in rows if row.golden is not None]
    by_name = {call.record: call for call in calls}
    known = set(golden_order)
    fixed = {mine: theirs for mine, theirs in by_hand.items() if mine in by_name and theirs in known}
    taken = set(fixed.values())
    left = [call.record for call in calls if call.record and call.record not in fixed]
    golden_left = [name for name in golden_order if name not in taken] if taken else golden_order
    mine = {call.record: [row.target for row in call.rows if row.target is not None] for call in calls if call.record}
    sides = MarkedRecords(left, mine, trees[0], moved), MarkedRecords(golden_left, items, trees[1])
    aligned = align(left, golden_left, trees, marks(*sides), moved.record)
    found = []
    for record, golden_record in _with_fixed(aligned, fixed, [call.record for call in calls if call.record]):
        if record is None:
            name = golden_record or ""
            found.append(AlignedCall(None, name, [Row(name, None, item, name) for item in items[name]]))
        elif golden_record is None:
            found.append(AlignedCall(record, None, by_name[record].rows))
        elif by_name[record].golden_record == golden_record and golden_record not in golden_only:
            found.append(by_name[record])
        else:
            found.append(_paired(by_name[record], golden_record, items[golden_record]))
    return found


def _with_fixed(aligned: Iterable[Aligned], fixed: Mapping[str, str], order: Sequence[str]) -> Iterator[Aligned]:
    """`aligned` with the pairs of `fixed` where the target makes these calls."""
    if not fixed:
        yield from aligned
        return
    position = {name: number for number, name in enumerate(order)}
    waiting = sorted(fixed, key=position.__getitem__, reverse=True)
    for record, golden_record in aligned:
        while record is not None and waiting and position[waiting[-1]] < position[record]:
            yield waiting[-1], fixed[waiting.pop()]
        yield record, golden_record
    yield from ((record, fixed[record]) for record in reversed(waiting))


def _paired(call: AlignedCall, golden_record: str, items: list[Item]) -> AlignedCall:
    """`call` with the items of `golden_record` instead of those it was matched with by name."""
    record = call.record or ""
    golden_items = {item.name[len(golden_record) :]: item for item in items}
    rows = []
    for row in call.rows:
        if row.target is None:
            continue
        item = golden_items.pop(row.target.name[len(record) :], None)
        # What was measured between items that are another pair now says nothing of this one.
        rows.append(row if item is row.golden else Row(record, row.target, item, golden_record))
    rows += [Row(record, None, item, golden_record) for item in golden_items.values()]
    return AlignedCall(record, golden_record, rows)


def first_of_groups(tree: Tree) -> dict[str, str]:
    """The scopes around calls that are no modules, such as an optimizer, each with its first call."""
    found: dict[str, str] = {}
    for record, around in tree.items():
        if around and not is_module(around):
            found.setdefault(around, record)
    return found
