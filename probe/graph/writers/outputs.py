"""What is written of graphs: each writer takes one comparison after the other, and makes its files at the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

import numpy as np

from probe.graph.diff import GraphDiff
from probe.graph.options import DATABASE, HTML, JSON, MODEL_EXPLORER, GraphOptions
from probe.graph.page.blocks import Blocks
from probe.graph.page.columns import Columns
from probe.graph.page.manifest import Manifest
from probe.graph.writers.database import Section, database_name, write_database
from probe.graph.writers.json_file import JsonWriter
from probe.graph.writers.model_explorer import ModelExplorerWriter
from probe.graph.writers.page import PageData, write_page
from probe.graph.writers.shown import ShownComparison
from probe.graph.writers.stamps import in_words


class Writer(Protocol):
    """Makes files of comparisons."""

    def add(self, shown: ShownComparison, comparison: dict[str, Any]) -> None:
        """Take the next one; `comparison` is what the manifest says of it."""

    def finish(self) -> list[str]:
        """Write the files; returns their paths."""


class PageWriter:
    """Puts comparisons on a page; without a path no file is written."""

    def __init__(self, manifest: Manifest, path: str = "", max_megabytes: float = 0) -> None:
        self._path, self._manifest, self._max_megabytes = path, manifest, max_megabytes
        self._blocks = Blocks()
        self._comparisons: list[dict[str, Any]] = []

    def add(self, shown: ShownComparison, comparison: dict[str, Any]) -> None:
        self._blocks.add(shown.columns)
        self._comparisons.append(comparison)

    def finish(self) -> list[str]:
        return [write_page(self.page(), self._path, self._max_megabytes)] if self._path else []

    def page(self) -> PageData:
        """The page so far; it can be asked for once."""
        return PageData(self._manifest.as_json(self._comparisons), self._blocks.finished())


class DatabaseWriter:
    """Puts comparisons in the file of the reference tool's plug-in; of several runs each gets a folder of its own."""

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
        sections = self._sections.setdefault((shown.columns.run, "" if rank is None else shown.columns.place), [])
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
            write_database(path, sections, self._options.rules)
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
    """What is said of the merging of nodes of the target, which stand in the rows in their order."""
    nodes = np.cumsum(columns.name >= 0) - 1
    return {int(nodes[row]): said for row, said in columns.details.merged.items() if columns.name[row] >= 0}


def stem_of(folder: str, when: datetime) -> str:
    """The beginning of the names of all files but the database."""
    return os.path.join(folder, f"graph_{in_words(when)}")


def needs_diffs(formats: Sequence[str]) -> bool:
    """Whether one of these formats is made of the comparisons themselves."""
    return DATABASE in formats


def writers_of(
    formats: Sequence[str],
    folder: str,
    when: datetime,
    manifest: Manifest,
    options: GraphOptions,
    max_megabytes: float,
) -> list[Writer]:
    """The writers of these formats, whose files are named after `when`; the page comes last."""
    stem = stem_of(folder, when)
    found: list[Writer] = []
    if DATABASE in formats:
        found.append(DatabaseWriter(folder, options, when))
    if MODEL_EXPLORER in formats:
        found.append(ModelExplorerWriter(stem, options.rules))
    if JSON in formats:
        found.append(JsonWriter(stem, options.rules, manifest.unpaired))
    if HTML in formats:
        found.append(PageWriter(manifest, stem, max_megabytes))
    return found
