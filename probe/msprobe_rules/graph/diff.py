"""Two dumps as msProbe shows them beside each other."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from probe.common.align.calls import ERROR as ROW_ERROR
from probe.common.align.calls import WARNING as ROW_WARNING
from probe.common.align.calls import Row
from probe.common.dump.naming import function_name, parse
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.common.numerics.statistics import fraction
from probe.compare.measuring import flattened, measure, mode_of
from probe.compare.options import Comparison, Options
from probe.compare.result import Mode
from probe.graph.diff import GraphDiff, diff_of
from probe.graph.graph import API, GROUP, Graph, graph_beside, graph_of
from probe.graph.overflow_levels import CRITICAL, HIGH, MEDIUM, NONE, OverflowLevels
from probe.graph.pairing import ALONE, EXACT, FUZZY, STRUCTURE_MODE
from probe.msprobe_rules.compare import IGNORED, ONLY_OUTPUTS, V26_2_ROWS

NO_STATUS, PASS, UNMATCHED, WARNING, ERROR = range(5)
"""In order of severity. `NO_STATUS` is a pair without values."""

STATUSES = ("no status", "pass", "unmatched", "warning", "error")
"""Their names."""


# --- matching


def msprobe_pairs(target: Graph, golden: Graph, fuzzy: bool = False) -> array[int]:
    """The golden run's node of each node of the target; -1 without one.

    Two nodes are a pair if they have the same name and so have all nodes around them. With `fuzzy`, calls of APIs that
    are directly inside of a pair are paired in the order in which each API is called, whatever their numbers.
    """
    found = array("i", [-1]) * len(target)
    found[-1] = len(golden) - 1
    # The last node is the root, and each one comes before what is inside of it.
    for node in range(len(target) - 1, -1, -1):
        other = found[node]
        if other >= 0:
            _pair_inside(found, target, target.children[node], golden, golden.children[other], fuzzy)
    return found


def _pair_inside(
    found: array[int], target: Graph, nodes: Sequence[int], golden: Graph, others: Sequence[int], fuzzy: bool
) -> None:
    left: dict[str, deque[int]] = defaultdict(deque)
    for other in others:
        left[_key(golden, other, fuzzy)].append(other)
    for node in nodes:
        same = left.get(_key(target, node, fuzzy))
        if same:
            found[node] = same.popleft()


def _key(graph: Graph, node: int, fuzzy: bool) -> str:
    """The common key of both nodes of a pair: the name, or the name of the API and its direction."""
    name = graph.names[node]
    parsed = parse(name) if fuzzy and graph.kinds[node] == API else None
    return name if parsed is None else f"{parsed.base} {parsed.direction}"


# --- judged rows


NORM = 7
"""The index of the norm's relative error in the metrics of statistics."""


def as_judged(rows: Sequence[Row], mode: Mode) -> tuple[list[Row], list[Row]]:
    """The rows of a node that are judged, and the rows to judge in the place of each.

    Args:
        rows: all that the target has.
        mode: what the dumps are compared by.
    """
    name = function_name(rows[0].record)
    has_inputs = any(row.target is not None and row.target.state != OUTPUT for row in rows)
    # Without inputs, msProbe leaves out those alone whose memory nobody has written to.
    if name in IGNORED and (has_inputs or "empty" in name):
        return [], []
    is_collective = name in ONLY_OUTPUTS and has_inputs
    judged = [row for row in rows if _is_judged(row, is_collective)]
    if mode is Mode.CHECKSUM:
        judged = [row for row in rows if row.target is not None and (row.target.state == OUTPUT or not is_collective)]
    return judged, [_twin(row, mode, is_collective) for row in judged]


def _is_judged(row: Row, is_collective: bool) -> bool:
    """True if both sides have a value there, or the golden run has nothing at all, or the target what is not finite."""
    if row.target is None or row.target.dtype is None or (is_collective and row.target.state != OUTPUT):
        return False
    return not _is_null(row.golden) or row.target.has_nan or row.target.has_inf


def _is_null(item: Item | None) -> bool:
    return item is not None and item.dtype is None


def _twin(row: Row, mode: Mode, is_collective: bool) -> Row:
    target = row.target
    assert target is not None
    if _is_null(row.golden):
        golden = Item(target.name, target.state, target.dtype, target.shape, requires_grad=target.requires_grad)
    else:
        # A row that the golden run lacks has no type, no shape and no gradient, and differs in all of them.
        golden = row.golden or Item(target.name, target.state)
    metrics = row.metrics
    if mode is Mode.CHECKSUM:
        # No value is a value like any other, and not the same as no item.
        metrics = tuple("" if _is_null(item) else text for item, text in zip((target, row.golden), metrics))
    if mode is Mode.STATISTICS and (is_collective or type(metrics[NORM]) is str):
        # Of what has no finite norm nothing is said, of a norm that was zero neither, nor of what other ranks gave.
        metrics = (*metrics[:NORM], "N/A")
    # Without its name no call is left out.
    return Row("", target, golden, row.golden_record, metrics)


# --- overflow levels


_GROWTH = 100
"""An output whose norm is so many times that of the largest input is `HIGH`."""

_UNWRITTEN = ("Torch.empty.", "Torch.empty_like.", "Torch.empty_strided.")
"""Functions whose results hold arbitrary values, as nobody has written to them."""


def msprobe_level(node: str, items: Iterable[Item]) -> int:
    """The level of a call, an index in `LEVELS`.

    Args:
        node: the name of the call's record.
        items: what was recorded of it.
    """
    if node.startswith(_UNWRITTEN):
        return NONE
    inputs: list[Item] = []
    outputs: list[Item] = []
    for item in items:
        if item.is_tensor and item.state in (INPUT, OUTPUT) and _is_looked_at(item, len(node)):
            (inputs if item.state == INPUT else outputs).append(item)
    is_input_abnormal = any(map(_is_abnormal, inputs))
    if any(map(_is_abnormal, outputs)):
        return HIGH if is_input_abnormal else CRITICAL
    if is_input_abnormal:
        return MEDIUM
    return HIGH if _grows(inputs, outputs) else NONE


def _is_looked_at(item: Item, start: int) -> bool:
    """True if nothing but lists is around a value, which the places in its name tell."""
    name = item.name
    _, _, path = name[start:].partition(f".{item.state}.")
    first, _, inside = path.partition(".")
    if inside and not inside.replace(".", "").isdecimal():
        return False
    # The keyword arguments themselves are a dictionary.
    return item.state == INPUT or first.isdecimal()


def _is_abnormal(item: Item) -> bool:
    return _is_nonfinite(item.max) or _is_nonfinite(item.min) or _is_nonfinite(item.mean)


def _is_nonfinite(value: Any) -> bool:
    return type(value) is float and not math.isfinite(value)


def _grows(inputs: Iterable[Item], outputs: Iterable[Item]) -> bool:
    largest = max(map(_norm, inputs), default=0.0)
    return largest > 0 and max(map(_norm, outputs), default=0.0) > _GROWTH * largest


def _norm(item: Item) -> float:
    norm = item.norm
    return float(norm) if type(norm) in (float, int) and norm == norm else 0.0


# --- diff


_STATUS_OF = {ROW_ERROR: ERROR, ROW_WARNING: WARNING}

Items = dict[str, list[Item]]
"""The recorded items of each call."""


def msprobe_diff(target: Dump, golden: Dump | None = None, fuzzy: bool = False) -> GraphDiff:
    """A dump as a graph beside the one of a golden run, matched and judged as msProbe does.

    Its statuses are those of `probe.msprobe_rules.graph.diff`. There is no first divergence, no suspect and no
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
        self._graph = graph_of(target)
        self._other = graph_beside(target, self._graph, golden)
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
