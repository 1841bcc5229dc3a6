"""The dumps that stand beside each other on a page, and the work on each pair."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from probe.common.align.dump_pairs import pairs_of
from probe.common.collectives.collectives import is_communication
from probe.common.dump.layout import folder_of
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.runs import DumpLocation, FoundDumps, dumps_in, find_dumps, warn_of_left_out
from probe.common.errors import MsprobeException
from probe.common.given_paths import as_given
from probe.common.progress import ProgressCallback
from probe.compare.evidence import Mode, print_metrics
from probe.graph.diff import GraphDiff
from probe.graph.options import GraphOptions, add_micro_steps
from probe.graph.output import ShownComparison
from probe.graph.page.columns import Columns, columns_of
from probe.graph.page.prefixes import Prefixes
from probe.graph.page.without_paths import without_paths
from probe.shards.merge import Merged, merged
from probe.shards.split import Split
from probe.shards.split_runs import dumps_of, fit_shapes, partners, rank_folders

if TYPE_CHECKING:
    from probe.shards.split_runs import Partners


@dataclass(frozen=True)
class GraphLocation:
    """The location of the dumps of one comparison; each is a file or the folder of a process."""

    target: str
    golden: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    before: Optional[tuple[str, str]] = None  # noqa: UP045
    """The dumps of the step before."""
    run: str = ""
    """The path of the run where there are several."""
    step: str = ""
    """The mark that tells it from the other pairs of both runs, as ``compare`` names it."""
    label: str = ""
    """``rank0`` or ``proc123``, as ``compare`` names it."""
    name: str = ""
    """The name that tells it from others of its run, step and rank: ``proc123``; the golden run's rank if the target
    has one process; ``graph`` and ``pynative`` of MindSpore."""
    run_name: str = ""
    """The name on the page of the run, which no other one is called."""
    missing: tuple[str, ...] = ()
    """The steps and ranks that one run has alone, as ``compare`` tells them."""

    def absolute(self) -> GraphLocation:
        """The location for a process that runs in another folder."""
        golden = None if self.golden is None else os.path.abspath(self.golden)
        before = self.before and (os.path.abspath(self.before[0]), os.path.abspath(self.before[1]))
        return replace(self, target=os.path.abspath(self.target), golden=golden, before=before)

    def __str__(self) -> str:
        return self.target if self.golden is None else f"{self.target} and {self.golden}"


def located(target: str, golden: str | None, run: str = "") -> tuple[list[GraphLocation], list[str]]:
    """The comparisons of two paths, or the dumps of one, and a sentence for each dump that is left alone.

    Args:
        target, golden: a file, the folder of a process or a step, or a folder of steps.
        run: what tells these comparisons from those of other paths.

    Raises:
        FileCheckException: there is nothing, or nothing that belongs together.
    """
    if golden is None:
        return _with_names([GraphLocation(each.path, run=run) for each in dumps_in(target)]), []
    sides = find_dumps(target), find_dumps(golden)
    warn_of_left_out(*sides)
    pairs = pairs_of(*sides)
    locations = [
        GraphLocation(pair.target, pair.golden, pair.before, run, pair.step, pair.label, missing=pair.missing)
        for pair in pairs
    ]
    alone = [*_alone(sides[0], (pair.target for pair in pairs), "golden run", golden)]
    alone += _alone(sides[1], (pair.golden for pair in pairs), "target", target)
    return _with_names(locations), alone


def _with_names(locations: Sequence[GraphLocation]) -> list[GraphLocation]:
    """The comparisons of one run, each with what tells it from others of its step and rank."""
    known = [DumpLocation.of(graph_location.target) for graph_location in locations]
    count = Counter((each.step, each.rank) for each in known)
    return [
        replace(graph_location, name=_name(graph_location, each)) if count[each.step, each.rank] > 1 else graph_location
        for graph_location, each in zip(locations, known)
    ]


def _name(graph_location: GraphLocation, location: DumpLocation) -> str:
    """``graph proc123`` of ``run/graph/step0/proc123``."""
    name = graph_location.label or location.name
    return " ".join(filter(None, (location.mode, name if name != f"rank{location.rank}" else "")))


def _alone(found: FoundDumps, shown: Iterable[str], side: str, other: str) -> Iterator[str]:
    if os.path.isfile(found.path):
        return
    beside = {os.path.normpath(folder_of(each)) for each in shown}
    for each in (*found.dumps, *found.uncertain):
        if os.path.normpath(each.folder) not in beside:
            yield f"{as_given(each.folder)} has no counterpart in the {side} {other}: it is not compared."


# --- task


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
        diff.summary = msgspec.structs.replace(diff.summary, step=location.step, label=label, missing=location.missing)
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


# --- communication


class CommunicationPartners:
    """The partners of the communication calls of each step of which several ranks are on the page.

    They are looked for when the first comparison of a step that communicates is there: other processes go on with the
    next ones meanwhile, and where nothing communicates no dump is read for it.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._paths: dict[str, dict[str, None]] = {}
        """The dumps of each step, by its folder."""
        for task in tasks:
            if isinstance(task, GraphTask):
                self._paths.setdefault(_step(task), {})[task.location.target] = None
        self._partners: dict[str, Partners] = {}

    def added(self, shown: ShownComparison, task: Task) -> ShownComparison:
        """A comparison that says with which calls of other ranks those of the target exchange data."""
        columns, step = shown.columns, _step(task)
        rank = columns.rank
        if rank is None or len(self._paths.get(step, ())) < 2 or not any(map(is_communication, columns.texts)):
            return shown
        found = self._partners_of_step(step)
        add_partners(found, rank, columns)
        names = shown.diff.target.names if shown.diff is not None else ()
        links = {node: found.matched_distributed(rank, name) for node, name in enumerate(names)}
        return replace(shown, exchanged={node: link for node, link in links.items() if link})

    def _partners_of_step(self, step: str) -> Partners:
        if step not in self._partners:
            # Few runs communicate, and the others need not wait for it.
            from probe.shards.split_runs import Partners, partners

            dumps = _dumps(self._paths[step])
            self._partners[step] = partners(dumps) if len(dumps) > 1 else Partners()
        return self._partners[step]


def add_partners(found: Partners, rank: int, columns: Columns) -> None:
    """Say of the rows of a rank which calls of other ranks belong to them, and which calls lack one."""
    for row, index in enumerate(columns.name.tolist()):
        of_call = found.of_calls.get((rank, columns.texts[index])) if index >= 0 else None
        if of_call:
            columns.details.partners[row] = [(each.rank, each.name, each.text) for each in of_call]
    columns.notes += found.unpaired_of([rank])


def _step(task: Task) -> str:
    return os.path.dirname(os.path.abspath(folder_of(task.location.target)))


def _dumps(paths: Iterable[str]) -> dict[int, Dump]:
    """The dumps of the ranks; what cannot be read is named where it is compared."""
    dumps: dict[int, Dump] = {}
    for path in paths:
        try:
            dump = read(path)
        except (MsprobeException, OSError):
            continue
        if dump.rank is not None:
            dumps[dump.rank] = dump
    return dumps


# --- merged


@dataclass(frozen=True)
class MergedGraphTask(Task):
    """All ranks of one step of one run, or of two, whose folders are its location."""

    splits: tuple[Split, ...] = ()
    """The way in which the target is split, and the golden run."""

    @property
    def paths(self) -> list[str]:
        steps = [path for path in (self.location.target, self.location.golden) if path is not None]
        return [path for step in steps for path in rank_folders(step).values()]

    def compare(self, watch: ProgressCallback | None = None) -> list[ShownComparison]:
        """Every copy of the model, and behind them the ranks of the target that it was made of, each alone."""
        if watch is not None:
            watch("merging", 0, None)
        dumps = dumps_of(self.location.target)
        copies = merged(dumps, self.splits[0], self.location.target)
        others: list[Merged | None] = [None] * len(copies)
        if self.location.golden is not None:
            others = [*merged(dumps_of(self.location.golden), self.splits[1], self.location.golden)]
        for copy, other in zip(copies, others):
            if other is not None:
                fit_shapes(copy, other)
        found = [self._copy(copy, other) for copy, other in zip(copies, others)]
        ranks = {rank: len(found) + index for index, rank in enumerate(sorted(dumps))}
        rows: dict[int, dict[str, int]] = {}
        exchanged = partners(dumps)
        for rank in sorted(dumps):
            of_rank = without_paths(diff_of_dumps(dumps[rank], None, self.options), Prefixes(self.options.strip_paths))
            columns = rows_of(of_rank, self.options, f"rank {rank}")
            rows[rank] = _rows(columns, columns.name)
            columns.details.is_of_part = True
            add_partners(exchanged, rank, columns)
            found.append(ShownComparison(columns, is_part=True))
        for copy, shown in zip(copies, found):
            _add_parts(copy, shown.columns, ranks, rows)
            shown.columns.notes += exchanged.unpaired_of(copy.ranks)
        return found

    def _copy(self, copy: Merged, other: Merged | None) -> ShownComparison:
        prefixes = Prefixes(self.options.strip_paths)
        diff = diff_of_dumps(copy.dump, None if other is None else other.dump, self.options)
        diff.notes += [*copy.notes, *(other.notes if other is not None else ())]
        if diff.summary is not None:
            label = f"copy{copy.dump.rank}" if self.splits[0].dp > 1 else ""
            diff.summary = msgspec.structs.replace(diff.summary, step=self.location.step, label=label)
        diff = without_paths(diff, prefixes)
        columns = rows_of(diff, self.options)
        said = columns.details.merged
        sides = [("", copy, columns.name)]
        if other is not None:
            sides.append(("golden run: ", other, columns.golden_name))
        for side, each, names in sides:
            for name, row in _rows(columns, names).items():
                if name in each.sentences:
                    said.setdefault(row, []).extend(f"{side}{sentence}" for sentence in each.sentences[name])
        return ShownComparison(columns, diff if self.keeps_diff else None)


def _rows(columns: Columns, names: NDArray[np.int64]) -> dict[str, int]:
    """The row of each name of one side."""
    return {columns.texts[name]: row for row, name in enumerate(names.tolist()) if name >= 0}


def _add_parts(
    copy: Merged, columns: Columns, comparisons: Mapping[int, int], rows: Mapping[int, Mapping[str, int]]
) -> None:
    """Say of each row of a copy where it is in the ranks that it was made of."""
    for name, row in _rows(columns, columns.name).items():
        parts = [
            (f"rank {rank}", comparisons[rank], rows[rank][there])
            for rank, there in copy.origins.get(name, ())
            if there in rows[rank]
        ]
        if parts:
            columns.details.parts[row] = parts
