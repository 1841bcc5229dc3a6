"""One comparison as columns with texts of its own, so that a process can make it for another one to write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Optional, Protocol

import numpy as np
from numpy.typing import NDArray

from probe.common.align.calls import Row
from probe.common.dump.reading.items import INPUT, PARAMETERS_GRAD
from probe.compare.evidence import Mode, Summary
from probe.graph.diff import GraphDiff, is_tensor_of_one
from probe.graph.graph import Graph
from probe.graph.overflow_levels import OverflowLevels
from probe.graph.page.edges import Makers, makers_of
from probe.graph.page.prefixes import Code, code_of
from probe.graph.page.tensors import StackTable, TensorColumns, Texts, tensors_of
from probe.graph.pairing import FOLLOWS, SUSPECT

# --- order


Integers = NDArray[np.int64]


def merged_order(target: Graph, golden: Graph | None, pairs: Sequence[int]) -> tuple[Integers, Integers]:
    """The target's and the golden run's node of each row, -1 where a side has none; the roots share the last row.

    What the golden run has alone stands where it would be: inside of the node that its parent is paired with, behind
    what its predecessor is paired with.

    Args:
        pairs: the golden node of each node of the target, or -1.
    """
    rows = np.arange(len(target), dtype=np.int64)
    if golden is None:
        return rows, np.full(len(target), -1, dtype=np.int64)
    golden_rows = np.array(pairs, dtype=np.int64)
    root = len(golden) - 1
    golden_rows[golden_rows == root] = -1
    golden_rows[-1] = root
    partners = np.full(len(golden), -1, dtype=np.int64)
    paired = np.flatnonzero(golden_rows >= 0)
    partners[golden_rows[paired]] = paired
    alone = np.flatnonzero(partners < 0)
    if not len(alone):
        return rows, golden_rows
    sort_keys = _sort_keys(target, golden, partners.tolist(), alone.tolist())
    before = np.array([sort_keys[node][0] for node in sorted(sort_keys, key=sort_keys.__getitem__)], dtype=np.int64)
    inserted = np.array(sorted(sort_keys, key=sort_keys.__getitem__), dtype=np.int64)
    return np.insert(rows, before, -1), np.insert(golden_rows, before, inserted)


def _sort_keys(
    target: Graph, golden: Graph, partners: Sequence[int], alone: Sequence[int]
) -> dict[int, tuple[int, int, int, int]]:
    """Before which node of the target each node of the golden run alone stands, and in which order there.

    A node and what is inside of it, of the golden run alone too, stand together.
    """
    sort_keys: dict[int, tuple[int, int, int, int]] = {}
    predecessors: dict[int, dict[int, int]] = {}
    for node in reversed(alone):
        parent = golden.parents[node]
        if parent in sort_keys:
            sort_keys[node] = (*sort_keys[parent][:3], node)
            continue
        around = partners[parent]
        if parent not in predecessors:
            predecessors[parent] = _predecessors(target, golden, partners, parent)
        behind = predecessors[parent][node]
        if behind >= 0:
            # A node's successors come before the first node inside the next one.
            sort_keys[node] = behind + 1, -1, node, node
        else:
            sort_keys[node] = target.firsts[around], target.depths[around], node, node
    return sort_keys


def _predecessors(target: Graph, golden: Graph, partners: Sequence[int], parent: int) -> dict[int, int]:
    """The target's node after which each golden-only node inside `parent` comes; -1 if it is the first."""
    found: dict[int, int] = {}
    behind, around = -1, partners[parent]
    for child in golden.children[parent]:
        partner = partners[child]
        if partner < 0:
            found[child] = behind
        elif target.parents[partner] == around:
            behind = partner
    return found


def parent_offsets(target: Graph, golden: Graph | None, targets: Integers, goldens: Integers) -> Integers:
    """The number of rows from the parent down to each row; 0 of the root."""
    rows = np.arange(len(targets), dtype=np.int64)
    has_target = targets >= 0
    row_of_target = rows[has_target]
    above = np.array(target.parents, dtype=np.int64)[targets[has_target]]
    parents = rows.copy()
    parents[has_target] = np.where(above >= 0, row_of_target[above], row_of_target)
    if golden is not None and not has_target.all():
        row_of_golden = np.full(len(golden), -1, dtype=np.int64)
        has_golden = goldens >= 0
        row_of_golden[goldens[has_golden]] = rows[has_golden]
        alone = ~has_target
        parents[alone] = row_of_golden[np.array(golden.parents, dtype=np.int64)[goldens[alone]]]
    return parents - rows


Floats = NDArray[np.float64]


# --- columns


class ColumnRules(Protocol):
    """The questions of columns to the rules by which a comparison was judged."""

    @property
    def finds_overflows(self) -> bool:
        """True if numbers that are too large are looked for wherever a value is not finite."""

    def overflows(self, diff: GraphDiff) -> tuple[OverflowLevels, OverflowLevels | None]:
        """The overflow levels of the target and of the golden run; ``None`` if there is no golden run."""

    def item_statuses(self, diff: GraphDiff, rows: Sequence[Row]) -> bytes:
        """The status of each item of two dumps."""

    def item_notes(self, diff: GraphDiff, rows: Sequence[Row]) -> list[str]:
        """The note on each item; empty for most."""


@dataclass
class Items:
    """The items of all rows one after the other, in columns."""

    ends: Integers
    """The ends of the items of each row."""
    names: Integers
    targets: Integers
    """The index of the tensor; -1 without one."""
    goldens: Integers
    differences: Floats
    """NaN where there is none."""
    explained: Floats
    """The part of each difference that inputs and rounding explain; NaN where that is not known."""
    makers: Makers
    statuses: bytes
    metrics: dict[int, list[Any]] = field(default_factory=dict)
    """The metrics of items whose values were compared."""
    notes: dict[int, str] = field(default_factory=dict)


@dataclass
class Details:
    """The remarks on rows, by row."""

    why: dict[int, str] = field(default_factory=dict)
    cause: dict[int, str] = field(default_factory=dict)
    merged: dict[int, list[str]] = field(default_factory=dict)
    parts: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    partners: dict[int, list[tuple[int, str, str]]] = field(default_factory=dict)
    """Rank and name of each call that belongs to this one, and what is exchanged."""
    is_of_part: bool = False
    """True if these are calls of ranks that were merged, which have names of their own and are one run."""

    def move_parts(self, by: int) -> None:
        """Count comparisons from another one on: parts name those that were made together."""
        for row, parts in self.parts.items():
            self.parts[row] = [(name, comparison + by, at) for name, comparison, at in parts]


@dataclass
class PageSide:
    """The page's data on one dump."""

    path: str
    framework: str
    task: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    level: Optional[str]  # noqa: UP045
    nodes: int
    ending: str
    """The reason why what ran last is missing, as the end of a sentence; empty where nothing is."""


@dataclass
class Columns:
    """A comparison, row by row; texts, frames and stacks are indices in its own tables."""

    target: PageSide
    golden: Optional[PageSide]  # noqa: UP045
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
    is_measured: bool
    """True if the differences are measured distances."""
    other_arguments: list[int]
    """The rows of calls that take a plain argument of another value in the golden run."""
    micro: Integers
    stack: Integers
    golden_stack: Integers
    has: Integers
    items: Items
    tensors: TensorColumns
    details: Details
    first: int
    """The row of the first divergence; -1 without one."""
    suspects: list[int]
    nonfinite: int
    """The row of the first value that is not finite; -1 without one."""
    golden_nonfinite: int = -1
    """The row of the golden run's first value that is not finite; -1 without one."""
    origin: Optional[dict[str, Any]] = None  # noqa: UP045
    """The origin of the first divergence, as in the manifest."""
    run: str = ""
    """The mark that tells the comparison from those of other runs."""
    code: Code = field(default_factory=Code)
    """The code around the calls."""
    dump_name: str = ""
    """The mark that tells it from others of the same run, step and rank: ``proc123``, ``graph``."""

    def __len__(self) -> int:
        return len(self.name)

    def follow(self) -> None:
        """Judge nothing anew, as a divergence of an earlier step has reached this one."""
        self.status = np.where(self.status >= SUSPECT, FOLLOWS, self.status)
        self.items.statuses = bytes(FOLLOWS if status >= SUSPECT else status for status in self.items.statuses)


def name_of(columns: Columns, row: int) -> str:
    """The name of a row: that of the target's node, or of the golden run's where it alone has it."""
    index = columns.name[row] if columns.name[row] >= 0 else columns.golden_name[row]
    return columns.texts[int(index)]


def names_of(columns: Columns, row: int) -> tuple[str | None, str | None]:
    """The names of a row in target and golden run; ``None`` of a side without such a node."""
    target, golden = int(columns.name[row]), int(columns.golden_name[row])
    return columns.texts[target] if target >= 0 else None, columns.texts[golden] if golden >= 0 else None


def columns_of(diff: GraphDiff, rules: ColumnRules, find_overflows: bool = False) -> Columns:
    """The columns of a comparison, or of one graph.

    Args:
        diff: the comparison.
        rules: whose statuses the comparison has, and whose levels of overflow are shown.
        find_overflows: look for numbers that are too large.
    """
    collector = _Collector(diff, rules)
    found = collector.columns()
    if find_overflows or (rules.finds_overflows and found.tensors.is_nonfinite.any()):
        collector.add_overflows(found)
    return found


class _Collector:
    """Puts a comparison in rows."""

    def __init__(self, diff: GraphDiff, rules: ColumnRules) -> None:
        self._diff, self._rules = diff, rules
        self._targets, self._goldens = merged_order(diff.target, diff.golden, diff.pairs)
        self._nodes = list(zip(self._targets.tolist(), self._goldens.tolist()))
        self._row_of = {node: row for row, (node, _) in enumerate(self._nodes) if node >= 0}
        self._row_of_golden = {node: row for row, (_, node) in enumerate(self._nodes) if node >= 0}
        self._texts, self._stacks = Texts(), StackTable()

    def add_overflows(self, columns: Columns) -> None:
        """Put the levels of overflow in rows, and where the first value is that is not finite."""
        target, golden = self._rules.overflows(self._diff)
        columns.level = self._target_column(target.levels, 0)
        if golden is not None:
            columns.golden_level = self._golden_column(golden.levels, 0)
            columns.golden_nonfinite = self._row_of_golden.get(golden.first, -1)
        columns.nonfinite = self._row_of.get(target.first, -1)

    def columns(self) -> Columns:
        diff = self._diff
        target, golden = diff.target, diff.golden
        names = self._target_column(self._texts.indexes(target.names), -1)
        golden_names = self._golden_column(self._texts.indexes(golden.names) if golden is not None else (), -1)
        stack = self._target_column(self._stacks.add(target.names, diff.stacks), -1)
        golden_stack = stack
        if golden is not None:
            golden_stack = self._golden_column(self._stacks.add(golden.names, diff.golden_stacks), -1)
        rows = self._items_of_rows()
        items, tensors = self._items(rows)
        why = {**_by_row(diff.golden_why, self._row_of_golden), **_by_row(diff.why, self._row_of)}
        cause = {**_by_row(diff.golden_cause, self._row_of_golden), **_by_row(diff.cause, self._row_of)}
        details = Details(why, cause)
        return Columns(
            _side(target),
            None if golden is None else _side(golden),
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
            self._column_of_either(target.kinds, golden and golden.kinds),
            self._column_of_either(diff.statuses, diff.golden_statuses),
            self._target_column(diff.reasons, 0),
            self._target_column((), 0),
            self._golden_column((), 0),
            self._target_column(diff.in_errors, np.nan, np.float64),
            self._target_column(diff.out_errors, np.nan, np.float64),
            diff.is_measured,
            [row for row, items in enumerate(rows) if any(map(_is_other_argument, items))],
            self._column_of_either(target.micro_steps, golden and golden.micro_steps),
            stack,
            golden_stack,
            self._target_column(target.has_record, 0) + 2 * self._golden_column(golden.has_record if golden else (), 0),
            items,
            tensors,
            details,
            -1 if diff.first is None else self._row(diff.first),
            [self._row(pair) for pair in diff.suspects],
            -1,
            -1,
            self._origin(),
            code=code_of(diff.stacks, diff.golden_stacks) if diff.code is None else diff.code,
        )

    def _origin(self) -> dict[str, Any] | None:
        origin, first = self._diff.origin, self._diff.first
        if origin is None or first is None:
            return None
        # A module of the side that made the call.
        rows = self._row_of if first[0] >= 0 else self._row_of_golden
        return {
            "kind": origin.kind,
            "module": rows.get(origin.module),
            "item": origin.item,
            "parameter": origin.parameter,
            "nonfinite": origin.is_nonfinite,
        }

    def _row(self, pair: tuple[int, int]) -> int:
        node, other = pair
        return self._row_of[node] if node >= 0 else self._row_of_golden[other]

    def _target_column(self, column: Any, missing: Any, dtype: Any = np.int64) -> NDArray[Any]:
        """A column of the target's nodes as one of rows."""
        return _picked(column, self._targets, missing, dtype)

    def _golden_column(self, column: Any, missing: Any) -> NDArray[Any]:
        return _picked(column, self._goldens, missing, np.int64)

    def _column_of_either(self, column: Any, golden_column: Any) -> Integers:
        """The target's value, and the golden run's for nodes that the target lacks."""
        found = self._target_column(column, 0)
        return np.where(self._targets >= 0, found, self._golden_column(golden_column or (), 0))

    def _items_of_rows(self) -> list[Sequence[Row]]:
        items, golden_items = self._diff.items, self._diff.golden_items
        return [items.get(node, ()) if node >= 0 else golden_items.get(other, ()) for node, other in self._nodes]

    def _items(self, rows: Sequence[Sequence[Row]]) -> tuple[Items, TensorColumns]:
        flat = list(chain.from_iterable(rows))
        names = self._texts.indexes([_item_name(row) for row in flat])
        tensors, targets, goldens = tensors_of([row.target for row in flat], [row.golden for row in flat], self._texts)
        # A node that one side lacks has no size of difference.
        differences = [
            None if row.relative_difference == math.inf and is_tensor_of_one(row) else row.relative_difference
            for row in flat
        ]
        found = Items(
            np.cumsum(np.array([len(each) for each in rows], dtype=np.int64)),
            names,
            targets,
            goldens,
            _floats(differences),
            _floats([row.explained if row.relative_difference else None for row in flat]),
            makers_of(rows, self._texts),
            self._statuses(flat),
        )
        notes = self._rules.item_notes(self._diff, flat)
        found.notes = {index: note for index, note in enumerate(notes) if note}
        if self._diff.mode == Mode.TENSOR.value and self._diff.golden is not None:
            found.metrics = {index: list(row.metrics) for index, row in enumerate(flat) if row.metrics}
        return found, tensors

    def _statuses(self, rows: Sequence[Row]) -> bytes:
        if self._diff.golden is None:
            return bytes(len(rows))
        return self._rules.item_statuses(self._diff, rows)


def _picked(column: Any, nodes: Integers, missing: Any, dtype: Any) -> NDArray[Any]:
    """The entry of each node; `missing` where there is no node, and of all nodes where the column is empty."""
    if isinstance(column, (bytes, bytearray)):
        column = np.frombuffer(column, np.uint8)
    entries = np.asarray(column, dtype=dtype)
    if not len(entries):
        return np.full(len(nodes), missing, dtype=dtype)
    return np.where(nodes >= 0, entries[nodes], np.array(missing, dtype=dtype))


def _floats(values: Sequence[float | None]) -> Floats:
    # NumPy takes `None` for NaN.
    return np.array(values, dtype=np.float64)


def _is_other_argument(row: Row) -> bool:
    """True if a plain argument has another value in the golden run."""
    target, golden = row.target, row.golden
    return (
        target is not golden
        and target is not None
        and golden is not None
        and target.state == INPUT
        and None not in (target.value, golden.value)
        and bool(target.value != golden.value)
    )


def _by_row(said: Mapping[int, str], rows: Mapping[int, int]) -> dict[int, str]:
    return {rows[node]: text for node, text in said.items()}


def _side(graph: Graph) -> PageSide:
    return PageSide(graph.path, graph.framework, graph.task, graph.level, len(graph), graph.ending)


def _item_name(row: Row) -> str:
    """``input.0``; of a record of gradients the name of the parameter."""
    item = row.target if row.target is not None else row.golden
    assert item is not None
    record = row.record if row.target is not None else row.golden_record or row.record
    name = item.name[len(record) + 1 :] if item.name.startswith(record) else item.name
    return name.partition(".")[2] or name if item.state == PARAMETERS_GRAD and "." in name else name
