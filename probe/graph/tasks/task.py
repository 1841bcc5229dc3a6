"""The task of one process for a page: dumps are read, judged and put in rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from typing_extensions import Self

from probe.common.dump.reading.dump import Dump, read
from probe.common.progress import ProgressCallback
from probe.compare.evidence import Mode, print_metrics
from probe.graph.diff import GraphDiff
from probe.graph.micro_steps import add_micro_steps
from probe.graph.options import GraphOptions
from probe.graph.output.shown import ShownComparison
from probe.graph.page.columns import Columns, columns_of
from probe.graph.page.prefixes import Prefixes
from probe.graph.page.without_paths import without_paths
from probe.graph.tasks.located import GraphLocation


@dataclass(frozen=True)
class Task(ABC):
    """Some comparisons that are to be made; it can be sent to another process."""

    location: GraphLocation
    """The location of the dumps."""
    options: GraphOptions
    keeps_diff: bool = False
    """True if the comparisons themselves are wanted, and not only their rows."""

    @property
    @abstractmethod
    def paths(self) -> list[str]:
        """The files or folders of all processes that it reads."""

    @abstractmethod
    def compare(self, watch: ProgressCallback | None = None) -> list[ShownComparison]:
        """Make the comparisons."""

    def absolute(self) -> Self:
        """The task for a process that runs in another folder."""
        options = replace(self.options, compare=self.options.compare.absolute())
        return replace(self, location=self.location.absolute(), options=options)


@dataclass(frozen=True)
class GraphTask(Task):
    """One comparison, or one dump."""

    @property
    def paths(self) -> list[str]:
        return [path for path in (self.location.target, self.location.golden) if path is not None]

    def compare(self, watch: ProgressCallback | None = None) -> list[ShownComparison]:
        diff = diff_of_task(self, watch)
        if self.options.tensor_log and diff.mode == Mode.TENSOR.value:
            print_metrics(row for rows in diff.items.values() for row in rows)
        diff = without_paths(diff, Prefixes(self.options.strip_paths))
        columns = rows_of(diff, self.options, self.location.run_name, self.location.name)
        return [ShownComparison(columns, diff if self.keeps_diff else None)]


def diff_of_task(task: GraphTask, watch: ProgressCallback | None = None) -> GraphDiff:
    """Read the dumps of a comparison and judge them."""
    location = task.location
    if watch is not None:
        watch("reading", 0, None)
    target, golden = read(location.target), None if location.golden is None else read(location.golden)
    names = (None, location.run, location.run_name)
    options = replace(task.options, pairs=tuple(pair for pair in task.options.pairs if pair.run in names))
    diff = diff_of_dumps(target, golden, options, location.before, release=not task.keeps_diff, watch=watch)
    if diff.summary is not None:
        # Of several pairs that of the earliest step is told first.
        label = " ".join(part for part in (location.run, location.label) if part)
        diff.summary = replace(diff.summary, step=location.step, label=label, missing=location.missing)
    return diff


def diff_of_dumps(
    target: Dump,
    golden: Dump | None,
    options: GraphOptions,
    before: tuple[str, str] | None = None,
    *,
    release: bool = False,
    watch: ProgressCallback | None = None,
) -> GraphDiff:
    """Judge dumps as the options say; with `release` nobody looks at their records afterwards."""
    diff_of = options.rules.diff
    diff = diff_of(target, golden, options.compare, before, pairs=options.pairs, release=release, watch=watch)
    for graph in filter(None, (diff.target, diff.golden)):
        add_micro_steps(graph, options.micro_step)
    return diff


def rows_of(diff: GraphDiff, options: GraphOptions, run: str = "", dump_name: str = "") -> Columns:
    """The rows of a comparison, of which paths have been cut where that is wanted.

    Args:
        run: what tells it from those of other runs.
        dump_name: what tells it from those of the same run, step and rank.
    """
    columns = columns_of(diff, options.rules, options.overflow)
    columns.run = run
    columns.dump_name = dump_name
    return columns
