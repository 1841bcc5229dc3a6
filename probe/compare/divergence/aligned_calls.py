"""The calls of two runs side by side, in the order in which they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from probe.common.dump.reading.records import Item
from probe.common.dump.reading.sources import Tree
from probe.common.match.call_order import align
from probe.common.match.row import Row
from probe.compare.divergence.call_digest import Glance

Trees = tuple[Optional[Tree], Optional[Tree]]


class Step:
    """One call.

    Args:
        record, golden_record: ``None`` where that side did not make it.
        rows: its items, on whichever sides they are; or what makes them, which is asked when they are.
        glance: what was seen of the rows already.
    """

    __slots__ = ("_rows", "glance", "golden_record", "record")

    def __init__(
        self,
        record: str | None,
        golden_record: str | None,
        rows: list[Row] | Callable[[], list[Row]],
        glance: Glance | None = None,
    ) -> None:
        self.record, self.golden_record = record, golden_record
        self._rows = rows
        self.glance = glance

    @property
    def rows(self) -> list[Row]:
        """Its items; the same objects each time."""
        if not isinstance(self._rows, list):
            self._rows = self._rows()
        return self._rows


def steps(rows: Iterable[Row], golden_order: Sequence[str], trees: Trees, same_names: bool) -> list[Step]:
    """The calls of the target in order, and those that only the golden side made where they would be.

    Args:
        rows: the rows of a comparison.
        golden_order: the records of the golden side in their order.
        trees: the call trees of target and golden side.
        same_names: whether both sides call the same things the same. Then a call without a match was not made on the
            other side, and the numbers of those after it may have shifted, so that calls are paired by their order.
    """
    made: dict[str, list[Row]] = {}
    golden_only: dict[str, list[Row]] = {}
    for row in rows:
        there = made if row.target is not None else golden_only
        found = there.get(row.record)
        if found is None:
            there[row.record] = [row]
        else:
            found.append(row)
    matched = [Step(record, _golden(found), found) for record, found in made.items()]
    met = {step.golden_record for step in matched}
    if same_names and (None in met or any(record not in met for record in golden_only)):
        return _in_order(matched, golden_only, golden_order, trees)
    return [
        Step(step.record, step.golden_record, step.rows + golden_only[step.golden_record])
        if step.golden_record in golden_only
        else step
        for step in matched
    ]


def _golden(rows: list[Row]) -> str | None:
    return next((row.golden_record for row in rows if row.golden_record), None)


def _in_order(
    matched: list[Step], golden_only: dict[str, list[Row]], golden_order: Sequence[str], trees: Trees
) -> list[Step]:
    items: dict[str, list[Item]] = {name: [] for name in golden_order}
    for step in matched:
        if step.golden_record:
            items[step.golden_record] += [row.golden for row in step.rows if row.golden is not None]
    for record, rows in golden_only.items():
        items[record] += [row.golden for row in rows if row.golden is not None]
    by_name = {step.record: step for step in matched}
    found = []
    for n, b in align([step.record for step in matched if step.record], golden_order, trees):
        if n is None:
            found.append(Step(None, b, []))
        elif b is None:
            found.append(Step(n, None, by_name[n].rows))
        else:
            found.append(_paired(by_name[n], b, items[b]))
    return found


def _paired(step: Step, golden: str, items: list[Item]) -> Step:
    """`step` with the items of the record `golden` in the place of those it was matched with by name."""
    record = step.record or ""
    there = {item.name[len(golden) :]: item for item in items}
    rows = []
    for row in step.rows:
        if row.target is None:
            continue
        item = there.pop(row.target.name[len(record) :], None)
        # What was measured between items that are another pair now says nothing of this one.
        rows.append(row if item is row.golden else Row(record, row.target, item, golden))
    rows += [Row(record, None, item, golden) for item in there.values()]
    return Step(record, golden, rows)
