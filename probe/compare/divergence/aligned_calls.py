"""The calls of two runs side by side, in the order in which they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Optional

from probe.common.dump.naming import BACKWARD, FORWARD, ParsedName, parse, record_name
from probe.common.dump.reading.records import Item
from probe.common.dump.reading.sources import Tree
from probe.common.match.call_order import Aligned, align
from probe.common.match.layers.siblings import Renumbered
from probe.common.match.row import Row
from probe.compare.divergence.call_digest import CallDigest
from probe.compare.divergence.marks import Side, marks

_NOT_MOVED = Renumbered()

Trees = tuple[Optional[Tree], Optional[Tree]]


class AlignedCall:
    """One call of the target and the call of the golden side that it is compared with.

    Args:
        record, golden_record: ``None`` where that side did not make the call.
        rows: its items, on whichever sides they are; or a function that makes them when they are first asked for.
        digest: the summary of the rows, where it was made already.
    """

    __slots__ = ("_rows", "digest", "golden_record", "record")

    def __init__(
        self,
        record: str | None,
        golden_record: str | None,
        rows: list[Row] | Callable[[], list[Row]],
        digest: CallDigest | None = None,
    ) -> None:
        self.record, self.golden_record = record, golden_record
        self._rows = rows
        self.digest = digest

    @property
    def rows(self) -> list[Row]:
        """Its items; the same objects each time."""
        if not isinstance(self._rows, list):
            self._rows = self._rows()
        return self._rows


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
        same_names: whether both sides use the same names for the same things. Then a call without a match was not made
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


def _in_their_modules(
    calls: list[AlignedCall], trees: Trees, by_hand: Mapping[str, str]
) -> list[AlignedCall]:
    """`calls` where those of functions have a counterpart in the same module, if both sides have as many there.

    The number of such a call counts those of the whole run, so that two modules in another order exchange theirs.
    """
    there = {call.golden_record: call for call in calls if call.golden_record and call.record}
    if not trees[0] or not trees[1] or len(there) < len(calls):
        return calls
    mine = {call.record: _place(call.record, trees[0]) for call in calls if call.record}
    theirs = {name: _place(name, trees[1]) for name in there}
    shared = set(mine.values()) & set(theirs.values())
    groups: dict[tuple[str, str], list[AlignedCall]] = {}
    golden_groups: dict[tuple[str, str], list[str]] = {}
    moved: set[str] = set()
    for call in calls:
        record, golden = call.record or "", call.golden_record or ""
        parsed, golden_parsed = parse(record), parse(golden)
        if parsed is None or golden_parsed is None or parsed.is_module or record in by_hand:
            continue
        kind, golden_kind = (f"{each.base} {each.direction}" for each in (parsed, golden_parsed))
        groups.setdefault((kind, mine[record]), []).append(call)
        golden_groups.setdefault((golden_kind, theirs[golden]), []).append(golden)
        if mine[record] != theirs[golden] and mine[record] in shared and theirs[golden] in shared:
            moved.add(kind)
    partners: dict[str, str] = {}
    for kind in moved:
        of_kind = {key: found for key, found in groups.items() if key[0] == kind}
        golden_of_kind = {key: found for key, found in golden_groups.items() if key[0] == kind}
        if {key: len(found) for key, found in of_kind.items()} != {
            key: len(found) for key, found in golden_of_kind.items()
        }:
            continue
        for key, found in of_kind.items():
            # In the order of their numbers: those of backward calls are in the opposite one.
            names = sorted(golden_of_kind[key], key=_number)
            ordered = sorted(found, key=lambda call: _number(call.record or ""))
            partners.update((call.record or "", name) for call, name in zip(ordered, names))
    found_calls = []
    for call in calls:
        partner = partners.get(call.record or "", call.golden_record)
        if partner is None or partner == call.golden_record:
            found_calls.append(call)
        else:
            items = [row.golden for row in there[partner].rows if row.golden is not None]
            found_calls.append(_paired(call, partner, items))
    return found_calls


def _place(record: str, tree: Tree | None) -> str:
    """The path of the module around a call; of a backward that around its forward."""
    parsed = parse(record)
    around = (tree or {}).get
    parent = around(record)
    if parsed is not None and parsed.direction == BACKWARD:
        forward = record_name(ParsedName(parsed.base, parsed.number, FORWARD, parsed.is_module))
        parent = around(forward, parent)
    parsed = parse(parent or "")
    return parent or "" if parsed is None or not parsed.is_module else parsed.base.rpartition(".")[0]


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
    sides = Side(left, mine, trees[0], moved), Side(golden_left, items, trees[1])
    aligned = align(left, golden_left, trees, marks(*sides), moved.record)
    found = []
    for record, golden_record in _with_fixed(aligned, fixed, [call.record for call in calls if call.record]):
        if record is None:
            found.append(AlignedCall(None, golden_record, []))
        elif golden_record is None:
            found.append(AlignedCall(record, None, by_name[record].rows))
        elif by_name[record].golden_record == golden_record and golden_record not in golden_only:
            found.append(by_name[record])
        else:
            found.append(_paired(by_name[record], golden_record, items[golden_record]))
    return found


def _with_fixed(
    aligned: Iterable[Aligned], fixed: Mapping[str, str], order: Sequence[str]
) -> Iterator[Aligned]:
    """`aligned` with the pairs of `fixed` where the target makes these calls."""
    if not fixed:
        yield from aligned
        return
    place = {name: number for number, name in enumerate(order)}
    waiting = sorted(fixed, key=place.__getitem__, reverse=True)
    for record, golden_record in aligned:
        while record is not None and waiting and place[waiting[-1]] < place[record]:
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
