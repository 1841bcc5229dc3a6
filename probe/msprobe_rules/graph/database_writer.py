"""Comparisons put in the database of msProbe's plug-in for TensorBoard."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

import numpy as np

from probe.graph.diff import GraphDiff
from probe.graph.options import GraphOptions
from probe.graph.output.shown import ShownComparison
from probe.graph.page.columns import Columns
from probe.msprobe_rules.graph.database import Section, database_name, write_database


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
