"""The drop-in database: the file that msProbe's plug-in for TensorBoard opens.

An SQLite file with three tables: `tb_nodes` has a row for each node of each side, `tb_stack` each call stack once, and
`tb_config` one row for all of it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

import numpy as np

from probe.common import files
from probe.common.dump.layout import TENSOR_FOLDER
from probe.common.dump.naming import BACKWARD, FORWARD, parse, record_name
from probe.common.dump.reading.items import Item
from probe.common.dump.reading.sources import Stacks
from probe.common.errors import FileCheckException, MsprobeException
from probe.compare.result import Mode
from probe.graph.diff import GraphDiff
from probe.graph.graph import Graph, refuse_long_chains
from probe.graph.options import GraphOptions
from probe.graph.output import ShownComparison, in_words
from probe.graph.overflow_levels import LEVELS, MEDIUM
from probe.graph.page.columns import Columns
from probe.msprobe_rules.graph.database_items import ItemTexts, json_text

TARGET, GOLDEN = "NPU", "Bench"
"""The names of the two sides in the file."""

_NODES = (
    "id TEXT PRIMARY KEY",
    "graph_id TEXT NOT NULL",
    "node_order INTEGER NOT NULL",
    "node_name TEXT NOT NULL",
    "node_type TEXT NOT NULL",
    "up_node TEXT",
    "sub_nodes TEXT",
    "precision_index INTEGER",
    "overflow_level TEXT",
    "micro_step_id INTEGER NOT NULL",
    "matched_node_link TEXT",
    "stack_id TEXT",
    "parallel_merge_info TEXT",
    "matched_distributed TEXT",
    "modified INTEGER NOT NULL",
    "input_data TEXT",
    "output_data TEXT",
    "data_source TEXT",
    "dump_data_dir TEXT",
    "step INTEGER NOT NULL",
    "rank INTEGER NOT NULL",
    "is_distributed INTEGER",
)
_STACKS = ("id TEXT PRIMARY KEY", "stack_info TEXT")
_CONFIG = (
    "id TEXT PRIMARY KEY",
    "graph_type TEXT NOT NULL",
    "task TEXT",
    "tool_tip TEXT",
    "micro_steps INTEGER",
    "overflow_check INTEGER",
    "node_colors TEXT NOT NULL",
    "rank_list TEXT NOT NULL",
    "step_list TEXT NOT NULL",
)
_INDEXES = (
    "step, rank, data_source, up_node, node_order",
    "step, rank, data_source, node_name",
    "step, rank, data_source, node_order",
    "step, rank, node_order",
    "step, rank, micro_step_id, node_order",
    "step, rank, modified, matched_node_link",
    "is_distributed",
)
_COLOURS = {"#FFFCF3": ("pass", [0, 0.3]), "#FFDC7F": ("warning", [0.3, 0.6]), "#FF704D": ("error", [0.6, 1])}
"""The colour of each range of `precision_index`."""
_ALONE = "#C7C7C7"
_TASKS = {Mode.STATISTICS.value: "summary", Mode.TENSOR.value: "all", Mode.CHECKSUM.value: "md5"}
_TIPS = {
    "Max diff": "The maximum of the target less that of the golden run.",
    "Min diff": "The minimum of the target less that of the golden run.",
    "Mean diff": "The mean of the target less that of the golden run.",
    "L2norm diff": "The norm of the target less that of the golden run.",
    "Cosine": "The cosine of the angle between target and golden run.",
    "EucDist": "The norm of the difference of target and golden run.",
    "MaxAbsErr": "The largest difference of two elements.",
    "MaxRelativeErr": "The largest difference of two elements, relative to the golden run's.",
    "One Thousandth Err Ratio": "The share of elements with a relative difference below 0.001.",
    "Five Thousandths Err Ratio": "The share of elements with a relative difference below 0.005.",
    "md5": "The checksum of the data, which is the same of the same data.",
}
_TIPS_OF = {
    "summary": ("Max diff", "Min diff", "Mean diff", "L2norm diff"),
    "all": (
        "Cosine",
        "EucDist",
        "MaxAbsErr",
        "MaxRelativeErr",
        "One Thousandth Err Ratio",
        "Five Thousandths Err Ratio",
    ),
    "md5": ("md5",),
}
_PRECISION = {
    # no data, same, explained, follows, structure, one side only, suspect, diverged
    "probe": (None, 0, 0, 0, 0.5, None, 0.5, 1),
    # no status, pass, unmatched, warning, error
    "msprobe": (None, 0, None, 0.5, 1),
}
"""The `precision_index` of each status, by whose rules made it."""
_COLLECTIVES = ("Distributed.", "MintDistributed.", "communication.comm_func.")


@dataclass(frozen=True)
class Section:
    """The part of the file for one step and one rank."""

    diff: GraphDiff
    step: int = 0
    rank: int = 0
    levels: Optional[Sequence[int]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The overflow level of each node of the target, an index in `LEVELS`; ``None`` if that was not asked for."""
    golden_levels: Optional[Sequence[int]] = None  # noqa: UP045
    merged: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The way in which nodes of the target were made of those of several ranks, a sentence each."""
    partners: Mapping[int, Any] = field(default_factory=dict)
    """The partners of the target's nodes in communication, in the form of the JSON."""


def database_name(is_comparison: bool, when: datetime) -> str:
    """The file name that the plug-in looks for in a folder.

    Example:
        >>> database_name(True, datetime(2026, 1, 2, 3, 4, 5))
        'compare_20260102030405.vis.db'
    """
    return f"{'compare' if is_comparison else 'build'}_{in_words(when)}.vis.db"


def write_database(path: str, sections: Sequence[Section], rules: str = "probe") -> None:
    """Write a file for msProbe's plug-in, which wants a name as `database_name` makes them.

    Args:
        path: the file; it appears whole or not at all.
        sections: what was compared, or the single dumps, each of another step or rank.
        rules: whose statuses these are, ``probe`` or ``msprobe``.

    Raises:
        MsprobeException: there is no section, or two are of the same step and rank.
        FileCheckException: the file cannot be written.
    """
    _check(path, sections)
    files.make_folder(os.path.dirname(path) or ".")
    try:
        with files.replacing_by_name(path) as name:
            _write(name, sections, _PRECISION[rules])
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileCheckException(f"{path} cannot be written: {reason}.") from error


def _check(path: str, sections: Sequence[Section]) -> None:
    if not sections:
        raise MsprobeException(f"{path}: there is nothing to write.")
    seen: dict[tuple[int, int], Section] = {}
    for section in sections:
        other = seen.setdefault((section.step, section.rank), section)
        if other is not section:
            raise MsprobeException(
                f"{path}: {other.diff.target.path} and {section.diff.target.path} are both step {section.step}, rank "
                f"{section.rank}; write them to two files."
            )


def _write(name: str, sections: Sequence[Section], precision: Sequence[float | None]) -> None:
    connection = sqlite3.connect(name, isolation_level=None)
    try:
        # The file takes its name when it is finished, so that there is nothing to recover.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for table, columns in (("tb_nodes", _NODES), ("tb_stack", _STACKS), ("tb_config", _CONFIG)):
            connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        for section in sections:
            for side in _sides(section, precision):
                connection.executemany(f"INSERT INTO tb_nodes VALUES ({_placeholders(_NODES)})", side.nodes())
                connection.executemany(f"INSERT INTO tb_stack VALUES ({_placeholders(_STACKS)})", side.stack_rows())
        connection.execute(f"INSERT INTO tb_config VALUES ({_placeholders(_CONFIG)})", _config(sections))
        for number, columns_of_index in enumerate(_INDEXES, 1):
            connection.execute(f"CREATE INDEX index{number} ON tb_nodes ({columns_of_index})")
        connection.execute("COMMIT")
    finally:
        connection.close()


def _placeholders(columns: Sequence[str]) -> str:
    return ", ".join("?" * len(columns))


def _config(sections: Sequence[Section]) -> tuple[Any, ...]:
    first = sections[0].diff
    is_comparison = first.golden is not None
    task = _TASKS.get(first.mode, first.mode) if is_comparison else ""
    graphs = [graph for section in sections for graph in (section.diff.target, section.diff.golden) if graph]
    micro_steps = max(max(graph.micro_steps, default=0) for graph in graphs) + 1
    return (
        "1",
        "compare" if is_comparison else "build",
        task,
        json_text({name: _TIPS[name] for name in _TIPS_OF.get(task, ())}) if is_comparison else None,
        micro_steps,
        int(any(section.levels is not None for section in sections)),
        json_text(_colours() if is_comparison else None),
        json_text(sorted({section.rank for section in sections})),
        json_text(sorted({section.step for section in sections})),
    )


def _colours() -> dict[str, Any]:
    found: dict[str, Any] = {
        colour: {"value": limits, "description": f"The worst item of the node: {level}.", "accuracy_level": level}
        for colour, (level, limits) in _COLOURS.items()
    }
    found[_ALONE] = {"value": [], "description": "One side alone has the node.", "accuracy_level": "unmatched node"}
    return found


def _sides(section: Section, precision: Sequence[float | None]) -> Iterator[_SectionSide]:
    yield _Target(section, precision)
    if section.diff.golden is not None:
        yield _Golden(section, section.diff.golden)


class _SectionSide:
    """The rows of one side of a section."""

    def __init__(
        self, section: Section, source: str, graph: Graph, stacks: Stacks | None, levels: Sequence[int] | None
    ) -> None:
        if section.diff.golden is not None:
            refuse_long_chains("the database", graph.names, graph.parents)
        self._section, self._source, self._graph = section, source, graph
        self._levels = levels
        self._id = f"{source}_{section.rank}_{section.step}"
        self._stacks = stacks or {}
        self._stack_ids: dict[tuple[str, ...], str] = {}
        is_tensor = section.diff.mode == Mode.TENSOR.value
        path = graph.path if section.diff.is_without_paths else os.path.abspath(graph.path)
        folder = os.path.join(os.path.dirname(path), TENSOR_FOLDER)
        self._data_folder = folder if is_tensor else None

    def items(self, node: int) -> tuple[str, str]:
        raise NotImplementedError

    def link(self, node: int) -> str:
        """The chain from the root to the partner of a node."""
        raise NotImplementedError

    def precision(self, node: int) -> float | None:
        raise NotImplementedError

    def nodes(self) -> Iterator[tuple[Any, ...]]:
        graph, section = self._graph, self._section
        children = graph.children
        names = [json_text(name) for name in graph.names]
        is_target = self._source == TARGET
        for node, name in enumerate(graph.names):
            inputs, outputs = self.items(node)
            parent = graph.parents[node]
            merged = section.merged.get(node, ()) if is_target else ()
            partners = section.partners.get(node) if is_target else None
            yield (
                f"{self._id}_{name}",
                self._id,
                node,
                name,
                str(graph.kinds[node]),
                graph.names[parent] if parent >= 0 else "",
                f"[{','.join([names[child] for child in children[node]])}]" if children[node] else "",
                self.precision(node),
                self._level(node),
                graph.micro_steps[node],
                self.link(node),
                self._stack_id(name),
                json_text(merged) if merged else "",
                json_text(partners) if partners else "{}",
                0,
                inputs,
                outputs,
                self._source,
                self._data_folder,
                section.step,
                section.rank,
                int(name.startswith(_COLLECTIVES)),
            )

    def _level(self, node: int) -> str | None:
        level = 0 if self._levels is None else self._levels[node]
        return LEVELS[level] if level >= MEDIUM else None

    def _stack_id(self, name: str) -> str:
        stack = self._stacks.get(name)
        if stack is None and BACKWARD in name:
            # A backward pass has the stack of the call that it is the backward pass of.
            parsed = parse(name)
            forward = None if parsed is None else record_name(parsed._replace(direction=FORWARD))
            stack = self._stacks.get(forward or "")
        return self._stack_ids.setdefault(tuple(stack or ()), f"{self._id}_{len(self._stack_ids)}")

    def stack_rows(self) -> Iterator[tuple[str, str]]:
        """The stacks of the nodes that were written before."""
        for stack, number in self._stack_ids.items():
            yield number, json_text(stack)


class _Target(_SectionSide):
    def __init__(self, section: Section, precision: Sequence[float | None]) -> None:
        diff = section.diff
        super().__init__(section, TARGET, diff.target, diff.stacks, section.levels)
        self._diff = diff
        self._precision = precision
        self._texts = ItemTexts("" if diff.golden is None else diff.mode, diff.target.framework)

    def items(self, node: int) -> tuple[str, str]:
        return self._texts.of_target(self._diff.items.get(node, ()), self._diff.pairs[node] >= 0)

    def link(self, node: int) -> str:
        golden, other = self._diff.golden, self._diff.pairs[node]
        return "[]" if golden is None or other < 0 else _chain(golden, other)

    def precision(self, node: int) -> float | None:
        return None if self._diff.golden is None else self._precision[self._diff.statuses[node]]


class _Golden(_SectionSide):
    def __init__(self, section: Section, graph: Graph) -> None:
        diff = section.diff
        super().__init__(section, GOLDEN, graph, diff.golden_stacks, section.golden_levels)
        self._diff = diff
        self._texts = ItemTexts(diff.mode, graph.framework)
        self._partners = {other: node for node, other in enumerate(diff.pairs) if other >= 0}

    def items(self, node: int) -> tuple[str, str]:
        partner = self._partners.get(node, -1)
        rows = self._diff.golden_items.get(node, ()) if partner < 0 else self._diff.items.get(partner, ())
        items: Iterator[Item] = (row.golden for row in rows if row.golden is not None)
        return self._texts.of_golden(items)

    def link(self, node: int) -> str:
        partner = self._partners.get(node, -1)
        return "[]" if partner < 0 else _chain(self._diff.target, partner)

    def precision(self, node: int) -> float | None:
        return None


def _chain(graph: Graph, node: int) -> str:
    """The names from the root to a node, as JSON."""
    return json_text([graph.names[each] for each in (node, *graph.above(node))][::-1])


# --- database writer


class DatabaseWriter:
    """Puts comparisons in the file of msProbe's plug-in; of several runs each gets a folder of its own."""

    def __init__(self, folder: str, options: GraphOptions, when: datetime) -> None:
        self._folder, self._options, self._when = folder, options, when
        self._sections: dict[tuple[str, str], list[Section]] = {}

    def add(self, shown: ShownComparison, comparison: dict[str, Any]) -> None:
        diff = shown.diff
        if shown.is_part:
            return
        assert diff is not None
        step, rank = diff.target.step or 0, diff.target.rank
        # Two dumps of one rank, as MindSpore has them, are in two files.
        sections = self._sections.setdefault((shown.columns.run, "" if rank is None else shown.columns.dump_name), [])
        levels, golden_levels = _levels(shown.columns, diff, self._options.overflow)
        if rank is None:
            # Processes without a rank get the numbers behind those of the ranks.
            rank = 1 + max((section.rank for section in sections if section.step == step), default=-1)
        sections.append(Section(diff, step, rank, levels, golden_levels, _merged_nodes(shown.columns), shown.exchanged))

    def finish(self) -> list[str]:
        paths = []
        for number, sections in enumerate(self._sections.values()):
            folder = self._folder if len(self._sections) == 1 else os.path.join(self._folder, f"run{number}")
            path = os.path.join(folder, database_name(sections[0].diff.golden is not None, self._when))
            write_database(path, sections, self._options.rules.name)
            paths.append(path)
        return paths


def _levels(columns: Columns, diff: GraphDiff, was_asked_for: bool) -> tuple[list[int] | None, list[int] | None]:
    """The overflow levels of the nodes of both sides, as the rows have them; ``None`` where nobody looked for them."""
    if not (was_asked_for or columns.level.any() or columns.golden_level.any()):
        return None, None
    levels: list[int] = columns.level[columns.name >= 0].tolist()
    if diff.golden is None:
        return levels, None
    golden_levels = np.zeros(len(diff.golden), dtype=np.int64)
    rows = np.flatnonzero(columns.golden_name >= 0)
    nodes = [diff.golden.index[columns.texts[name]] for name in columns.golden_name[rows].tolist()]
    golden_levels[nodes] = columns.golden_level[rows]
    return levels, golden_levels.tolist()


def _merged_nodes(columns: Columns) -> dict[int, list[str]]:
    """The remarks on the merging of the target's nodes, which are in the order of the rows."""
    nodes = np.cumsum(columns.name >= 0) - 1
    return {int(nodes[row]): said for row, said in columns.details.merged.items() if columns.name[row] >= 0}
