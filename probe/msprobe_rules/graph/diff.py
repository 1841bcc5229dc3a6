"""Two dumps as msProbe shows them beside each other."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from itertools import chain

from probe.common.align.row import ERROR as ROW_ERROR
from probe.common.align.row import WARNING as ROW_WARNING
from probe.common.align.row import Row
from probe.common.dump.naming import function_name
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import OUTPUT, Item
from probe.common.numerics.statistics import fraction
from probe.compare.options import Options
from probe.compare.result import Mode
from probe.compare.rows.matching import flattened, mode_of
from probe.compare.rows.measuring import measure
from probe.compare.two_dumps import Comparison
from probe.graph.diff import GraphDiff, diff_of
from probe.graph.graph import GROUP, graph_of
from probe.graph.overflow_levels import NONE, OverflowLevels
from probe.graph.status import ALONE, EXACT, FUZZY, STRUCTURE_MODE
from probe.msprobe_rules.compare.v26_2 import V26_2_ROWS
from probe.msprobe_rules.graph.judged_rows import NORM, as_judged
from probe.msprobe_rules.graph.matching import msprobe_pairs
from probe.msprobe_rules.graph.overflow_levels import msprobe_level
from probe.msprobe_rules.graph.statuses import ERROR, NO_STATUS, PASS, UNMATCHED, WARNING

_STATUS_OF = {ROW_ERROR: ERROR, ROW_WARNING: WARNING}

Items = dict[str, list[Item]]
"""The recorded items of each call."""


def msprobe_diff(target: Dump, golden: Dump | None = None, fuzzy: bool = False) -> GraphDiff:
    """A dump as a graph beside the one of a golden run, matched and judged as msProbe does.

    Its statuses are those of `probe.msprobe_rules.graph.statuses`. There is no first divergence, no suspect and no
    summary.

    Args:
        target: the dump.
        golden: the one that it is held against; without it the graph of one dump.
        fuzzy: inside of pairs, pair calls of APIs whatever their numbers.

    Raises:
        MsprobeException: these two cannot be compared, and why.
        DumpFormatError: a dump has no order in which its calls are inside of each other.
    """
    if golden is None:
        return diff_of(target)
    return _ByMsprobe(target, golden, fuzzy).diff()


def msprobe_overflows(diff: GraphDiff) -> tuple[OverflowLevels, OverflowLevels | None]:
    """msProbe's levels of the target and of the golden run; ``None`` where there is no golden run."""
    levels = bytearray(len(diff.target))
    golden = None if diff.golden is None else bytearray(len(diff.golden))
    for node, rows in diff.items.items():
        levels[node] = msprobe_level(diff.target.names[node], (row.target for row in rows if row.target is not None))
        other = diff.pairs[node]
        if diff.golden is not None and golden is not None and other >= 0:
            golden[other] = _golden_level(diff.golden.names[other], rows)
    if diff.golden is None or golden is None:
        return _with_first(levels), None
    for other, rows in diff.golden_items.items():
        golden[other] = _golden_level(diff.golden.names[other], rows)
    return _with_first(levels), _with_first(golden)


def _golden_level(name: str, rows: Iterable[Row]) -> int:
    return msprobe_level(name, (row.golden for row in rows if row.golden is not None))


def _with_first(levels: bytearray) -> OverflowLevels:
    return OverflowLevels(levels, next((node for node, level in enumerate(levels) if level != NONE), -1))


class _ByMsprobe:
    """Two dumps, the pairs of their nodes and the rows of the pairs."""

    def __init__(self, target: Dump, golden: Dump, fuzzy: bool) -> None:
        self._comparison = Comparison(target, golden, Options(fuzzy=fuzzy, rules=V26_2_ROWS))
        self._graph, self._other = graph_of(target), graph_of(golden)
        self._pairs = msprobe_pairs(self._graph, self._other, fuzzy)
        both = flattened(self._comparison)
        self._items, self._golden_items = ({call.record.name: call.items for call in side} for side in both)
        is_structure = target.task == golden.task == STRUCTURE_MODE
        self._mode = None if is_structure else mode_of(self._comparison, both, values=True)

    def diff(self) -> GraphDiff:
        rows = self._rows()
        in_errors, out_errors = (array("d", [math.nan]) * len(self._graph) for _ in range(2))
        why: dict[int, str] = {}
        statuses = bytearray(UNMATCHED if other < 0 else NO_STATUS for other in self._pairs)
        if self._mode is not None:
            measure(self._comparison, [row for row in chain.from_iterable(rows.values()) if row.target], self._mode)
            self._judge(rows, statuses, why)
        if self._mode is Mode.STATISTICS:
            for node, of_node in rows.items():
                in_errors[node], out_errors[node] = (
                    _largest(of_node, is_output=False),
                    _largest(of_node, is_output=True),
                )
        self._add_groups(statuses)
        golden_statuses = bytearray([UNMATCHED]) * len(self._other)
        for other in self._pairs:
            if other >= 0:
                # msProbe colours the nodes of the target only.
                golden_statuses[other] = NO_STATUS
        target, golden = self._comparison.target, self._comparison.golden
        return GraphDiff(
            target=self._graph,
            golden=self._other,
            pairs=self._pairs,
            reasons=self._reasons(),
            statuses=statuses,
            golden_statuses=golden_statuses,
            in_errors=in_errors,
            out_errors=out_errors,
            why=why,
            cause={},
            golden_why={},
            golden_cause={},
            first=None,
            suspects=[],
            origin=None,
            items=rows,
            golden_items=self._golden_only(),
            summary=None,
            mode=STRUCTURE_MODE if self._mode is None else self._mode.value,
            stacks=target.stacks,
            golden_stacks=golden.stacks,
        )

    def _rows(self) -> dict[int, list[Row]]:
        """The items of each node of the target beside those of its partner, with what the partner alone has behind."""
        found = {}
        for node, other in enumerate(self._pairs):
            name = self._graph.names[node]
            golden_name = self._other.names[other] if other >= 0 else name
            items = self._items.get(name, [])
            golden_items = self._golden_items.get(golden_name, []) if other >= 0 else []
            if items or golden_items:
                found[node] = _matched(name, items, golden_name, golden_items)
        return found

    def _judge(self, rows: Mapping[int, list[Row]], statuses: bytearray, why: dict[int, str]) -> None:
        assert self._mode is not None
        for node, all_rows in rows.items():
            of_node = [row for row in all_rows if row.target is not None]
            if self._pairs[node] < 0 or not of_node:
                continue
            judged, twins = as_judged(of_node, self._mode)
            if twins:
                V26_2_ROWS.classify_rows(twins, self._mode)
            for row, twin in zip(judged, twins):
                row.result, row.messages = twin.result, twin.messages
            # By their checksums, msProbe shows what it leaves out of these calls as an error.
            is_error = self._mode is Mode.CHECKSUM and not judged and "empty" in function_name(self._graph.names[node])
            worst = ERROR if is_error else PASS
            statuses[node] = max((_STATUS_OF.get(row.result, PASS) for row in judged), default=worst)
            messages = list(dict.fromkeys(chain.from_iterable(row.messages for row in judged)))
            if messages:
                why[node] = " ".join(messages)

    def _add_groups(self, statuses: bytearray) -> None:
        for node, children in enumerate(self._graph.children):
            if self._graph.kinds[node] == GROUP and self._pairs[node] >= 0:
                inside = (statuses[child] for child in children if self._pairs[child] >= 0)
                statuses[node] = max(inside, default=PASS) or PASS

    def _reasons(self) -> bytearray:
        names, golden_names = self._graph.names, self._other.names
        return bytearray(
            ALONE if other < 0 else EXACT if names[node] == golden_names[other] else FUZZY
            for node, other in enumerate(self._pairs)
        )

    def _golden_only(self) -> dict[int, list[Row]]:
        taken = set(self._pairs)
        alone = (node for node in range(len(self._other)) if node not in taken)
        names = ((node, self._other.names[node]) for node in alone)
        return {
            node: [Row(name, None, item, name) for item in self._golden_items[name]]
            for node, name in names
            if name in self._golden_items
        }


def _matched(name: str, items: Iterable[Item], golden_name: str, golden_items: Iterable[Item]) -> list[Row]:
    left = {item.name[len(golden_name) :]: item for item in golden_items}
    rows = []
    for item in items:
        golden = left.pop(item.name[len(name) :], None)
        rows.append(Row(name, item, golden, None if golden is None else golden_name))
    return rows + [Row(name, None, item, golden_name) for item in left.values()]


def _largest(rows: Iterable[Row], is_output: bool) -> float:
    """The largest relative error of the norms of inputs and parameters, or of outputs, as a fraction."""
    of_kind = (row for row in rows if row.target is not None and (row.target.state == OUTPUT) == is_output)
    errors = (fraction(row.metrics[NORM]) for row in of_kind)
    return max((error for error in errors if error is not None), default=math.nan)
