"""One comparison as columns with texts of its own, so that a process can make it for another one to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.common.dump.reading.items import PARAMETERS_GRAD
from probe.common.match.row import Row
from probe.common.metrics.error_bounds import is_same
from probe.compare.output.summary import Summary
from probe.compare.result import Mode
from probe.graph.diff import GraphDiff
from probe.graph.graph import Graph
from probe.graph.page.order import merged_order, parent_offsets
from probe.graph.page.stacks import Prefixes, StackTable
from probe.graph.page.tensors import Tensors, tensors_of
from probe.graph.page.texts import Texts
from probe.graph.status import DIVERGED, EXPLAINED, ONE_SIDE, SAME, STRUCTURE, SUSPECT

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class Items:
    """The items of all rows one after the other, in columns."""

    ends: Integers
    """Where the items of each row end."""
    names: Integers
    targets: Integers
    """Where the tensor is; -1 without one."""
    goldens: Integers
    differences: Floats
    """NaN where there is none."""
    statuses: bytes
    metrics: dict[int, list[Any]] = field(default_factory=dict)
    """The metrics of items whose values were compared."""
    notes: dict[int, str] = field(default_factory=dict)


@dataclass
class Details:
    """What is said of rows, by row."""

    why: dict[int, str] = field(default_factory=dict)
    cause: dict[int, str] = field(default_factory=dict)
    merged: dict[int, list[str]] = field(default_factory=dict)
    parts: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    partners: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)


@dataclass
class Side:
    """What the page says of one dump."""

    path: str
    framework: str
    task: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    level: Optional[str]  # noqa: UP045
    nodes: int


@dataclass
class Columns:
    """A comparison, row by row; texts, frames and stacks are indices in its own tables."""

    target: Side
    golden: Optional[Side]  # noqa: UP045
    step: Optional[int]  # noqa: UP045
    rank: Optional[int]  # noqa: UP045
    mode: str
    summary: Optional[Summary]  # noqa: UP045
    notes: list[str]
    texts: list[str]
    frames: list[str]
    stacks: list[tuple[int, ...]]
    name: Integers
    golden_name: Integers
    parent: Integers
    kind: Integers
    status: Integers
    reason: Integers
    level: Integers
    golden_level: Integers
    in_error: Floats
    out_error: Floats
    micro: Integers
    stack: Integers
    golden_stack: Integers
    has: Integers
    items: Items
    tensors: Tensors
    details: Details
    first: int
    """The row of the first divergence; -1 without one."""
    suspects: list[int]
    nonfinite: int
    run: str = ""
    verdict: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.name)


def columns_of(
    diff: GraphDiff,
    prefixes: Prefixes | None = None,
    levels: Sequence[int] = b"",
    golden_levels: Sequence[int] = b"",
) -> Columns:
    """The columns of a comparison, or of one graph.

    Args:
        prefixes: what is cut off paths.
        levels, golden_levels: the overflow level of each node of both sides; empty where they were not looked for.
    """
    return _Collector(diff, prefixes or Prefixes()).columns(levels, golden_levels)


class _Collector:
    """Puts a comparison in rows."""

    def __init__(self, diff: GraphDiff, prefixes: Prefixes) -> None:
        self._diff, self._prefixes = diff, prefixes
        self._targets, self._goldens = merged_order(diff.target, diff.golden, diff.pairs)
        self._nodes = list(zip(self._targets.tolist(), self._goldens.tolist()))
        self._row_of = {node: row for row, (node, _) in enumerate(self._nodes) if node >= 0}
        self._row_of_golden = {node: row for row, (_, node) in enumerate(self._nodes) if node >= 0}
        self._texts, self._stacks = Texts(), StackTable()

    def columns(self, levels: Sequence[int], golden_levels: Sequence[int]) -> Columns:
        diff, prefixes = self._diff, self._prefixes
        target, golden = diff.target, diff.golden
        names = self._of_target(self._texts.places(target.names), -1)
        golden_names = self._of_golden(self._texts.places(golden.names) if golden is not None else (), -1)
        stack = self._of_target(self._stacks.add(target.names, diff.stacks, prefixes), -1)
        golden_stack = stack
        if golden is not None:
            golden_stack = self._of_golden(self._stacks.add(golden.names, diff.golden_stacks, prefixes), -1)
        rows = self._items_of_rows()
        items, tensors = self._items(rows)
        details = Details(self._by_row(diff.why), self._by_row(diff.cause))
        return Columns(
            _side(target, prefixes),
            None if golden is None else _side(golden, prefixes),
            target.step,
            target.rank,
            diff.mode,
            diff.summary,
            list(dict.fromkeys([*target.notes, *(golden.notes if golden is not None else ()), *diff.notes])),
            self._texts.texts,
            self._stacks.frames.texts,
            self._stacks.stacks,
            names,
            golden_names,
            parent_offsets(target, golden, self._targets, self._goldens),
            self._of_either(target.kinds, golden and golden.kinds),
            self._of_either(diff.statuses, diff.golden_statuses),
            self._of_target(diff.reasons, 0),
            self._of_target(levels, 0),
            self._of_golden(golden_levels, 0),
            self._of_target(diff.in_errors, np.nan, np.float64),
            self._of_target(diff.out_errors, np.nan, np.float64),
            self._of_either(target.micro_steps, golden and golden.micro_steps),
            stack,
            golden_stack,
            self._of_target(target.has_record, 0) + 2 * self._of_golden(golden.has_record if golden else (), 0),
            items,
            tensors,
            details,
            -1 if diff.first is None else self._row(diff.first),
            [self._row(pair) for pair in diff.suspects],
            _first_nonfinite(items, tensors),
        )

    def _row(self, pair: tuple[int, int]) -> int:
        node, other = pair
        return self._row_of[node] if node >= 0 else self._row_of_golden[other]

    def _by_row(self, said: Mapping[int, str]) -> dict[int, str]:
        return {self._row_of[node]: text for node, text in said.items()}

    def _of_target(self, column: Any, missing: Any, dtype: Any = np.int64) -> NDArray[Any]:
        """A column of the target's nodes as one of rows."""
        return _picked(column, self._targets, missing, dtype)

    def _of_golden(self, column: Any, missing: Any, dtype: Any = np.int64) -> NDArray[Any]:
        return _picked(column, self._goldens, missing, dtype)

    def _of_either(self, column: Any, golden_column: Any) -> Integers:
        """What the target says, and of the nodes that it lacks what the golden run says."""
        found = self._of_target(column, 0)
        return np.where(self._targets >= 0, found, self._of_golden(golden_column or (), 0))

    def _items_of_rows(self) -> list[Sequence[Row]]:
        items, golden_items = self._diff.items, self._diff.golden_items
        return [
            items.get(node, ()) if node >= 0 else golden_items.get(other, ()) for node, other in self._nodes
        ]

    def _items(self, rows: Sequence[Sequence[Row]]) -> tuple[Items, Tensors]:
        flat = list(chain.from_iterable(rows))
        names = self._texts.places([_item_name(row) for row in flat])
        tensors, places = tensors_of([row.target for row in flat] + [row.golden for row in flat], self._texts)
        differences = [row.relative_difference for row in flat]
        marked = _marked(self._diff.summary)
        found = Items(
            np.cumsum(np.array([len(each) for each in rows], dtype=np.int64)),
            names,
            places[: len(flat)],
            places[len(flat) :],
            np.array([np.nan if each is None else each for each in differences], dtype=np.float64),
            bytes(len(flat)) if self._diff.golden is None else bytes([_status(row, marked) for row in flat]),
        )
        for place, row in enumerate(flat):
            if row.messages:
                found.notes[place] = "\n".join(row.messages)
        if self._diff.mode == Mode.TENSOR.value and self._diff.golden is not None:
            found.metrics = {place: list(row.metrics) for place, row in enumerate(flat) if row.metrics}
        return found, tensors


def _picked(column: Any, nodes: Integers, missing: Any, dtype: Any) -> NDArray[Any]:
    """The entry of each node; `missing` where there is no node, and of all nodes where the column is empty."""
    if isinstance(column, (bytes, bytearray)):
        column = np.frombuffer(column, np.uint8)
    entries = np.asarray(column, dtype=dtype)
    if not len(entries):
        return np.full(len(nodes), missing, dtype=dtype)
    return np.where(nodes >= 0, entries[nodes], np.array(missing, dtype=dtype))


def _side(graph: Graph, prefixes: Prefixes) -> Side:
    return Side(prefixes.path(graph.path), graph.framework, graph.task, graph.level, len(graph))


def _item_name(row: Row) -> str:
    """``input.0``; of a record of gradients the name of the parameter."""
    item = row.target if row.target is not None else row.golden
    assert item is not None
    record = row.record if row.target is not None else row.golden_record or row.record
    name = item.name[len(record) + 1 :] if item.name.startswith(record) else item.name
    return name.partition(".")[2] or name if item.state == PARAMETERS_GRAD and "." in name else name


def _marked(summary: Summary | None) -> dict[str, int]:
    """The items that show where the runs diverge, with the status of the call."""
    if summary is None or summary.divergence is None:
        return {}
    divergence = summary.divergence
    found = {each.item: SUSPECT for each in divergence.suspects if each.item}
    return {**found, divergence.first.item: DIVERGED}


def _status(row: Row, marked: Mapping[str, int]) -> int:
    target, golden = row.target, row.golden
    if target is None or golden is None:
        return ONE_SIDE
    if target is golden:
        return SAME
    if target.name in marked:
        return marked[target.name]
    if target.dtype != golden.dtype or target.shape != golden.shape or target.value != golden.value:
        return STRUCTURE
    difference = row.relative_difference
    if difference is None:
        return SAME if is_same(target, golden) else EXPLAINED
    return EXPLAINED if difference or not is_same(target, golden) else SAME


def _first_nonfinite(items: Items, tensors: Tensors) -> int:
    """The first row with a tensor of the target that is not finite; -1 without one."""
    high, low, mean, _ = tensors.statistics
    has_nan_alone = mean.is_nan & ~(high.is_infinite | low.is_infinite)
    bad = high.is_nan | low.is_nan | high.is_infinite | low.is_infinite | has_nan_alone
    found = np.flatnonzero((items.targets >= 0) & bad[items.targets]).tolist() if len(bad) else []
    return int(np.searchsorted(items.ends, found[0], side="right")) if found else -1
