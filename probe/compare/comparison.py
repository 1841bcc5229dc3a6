"""One dump against another: items are matched, measured and judged, then the first divergence is searched."""

from __future__ import annotations

import os
from itertools import groupby
from operator import attrgetter

import msgspec
from msgspec.structs import replace
from typing_extensions import Self

from probe.common import files
from probe.common.align.calls import Calls
from probe.common.align.dump_pairs import DumpPair
from probe.common.align.name_mapping import write_names
from probe.common.dump.reading.dump import Dump, read
from probe.common.progress import ProgressCallback
from probe.compare import tables
from probe.compare.judgement import judge_rows
from probe.compare.measuring import flattened, match, measure, mode_of
from probe.compare.options import Comparison, Options
from probe.compare.result import ComparisonResult, Mode
from probe.compare.summary import Summary, summarise
from probe.compare.summary_text import print_metrics
from probe.compare.verdict.conclusion import Seen, conclude


class ComparedDumps(msgspec.Struct, frozen=True):
    """Two dumps compared, with what was seen on the way."""

    result: ComparisonResult
    calls: Calls
    """The calls of both sides with their items."""
    seen: Seen
    """The calls side by side, and what was found of each pair."""


def compare_dumps(
    target: Dump,
    golden: Dump,
    options: Options | None = None,
    *,
    values: bool = True,
    before: tuple[str, str] | None = None,
) -> ComparisonResult:
    """Compare two dumps with each other.

    Args:
        target, golden: the dumps.
        options: what the user chose.
        values: compare real data by its values; otherwise by its statistics.
        before: the paths of the dumps of the step before, which tell of the optimizer's step between.

    Raises:
        MsprobeException: these two cannot be compared, and why.
    """
    return compared(Comparison(target, golden, options or Options(), before), values=values).result


def compared(
    comparison: Comparison,
    *,
    values: bool = True,
    release: bool = False,
    watch: ProgressCallback | None = None,
    keeps_judged: bool = False,
) -> ComparedDumps:
    """Compare two dumps as `compare_dumps` does.

    Args:
        comparison: the dumps, and how they are compared.
        values: compare real data by its values; otherwise by its statistics.
        release: free the memory of the dumps' records as soon as their items are made. Nobody can look at the records
            of these dumps afterwards.
        watch: a callback for how far the measuring is.
        keeps_judged: keep what was found of each pair of calls.
    """
    target, golden, rules = comparison.target, comparison.golden, comparison.options.rules
    both = flattened(comparison, release)
    mode = mode_of(comparison, both, values)
    matched = match(comparison, both)
    algorithms = measure(comparison, matched.rows, mode, watch)
    result = ComparisonResult(target.path, golden.path, mode, comparison.debug)
    result.rows, result.stacks, result.golden_stacks = matched.rows, target.stacks, golden.stacks
    result.data_mapping, result.algorithms = matched.derived, algorithms
    seen = conclude(comparison, both, matched, result, keeps_judged)
    if rules is None:
        judge_rows(result)
    else:
        for _, rows in groupby(result.rows, key=attrgetter("record")):
            rules.classify_rows(list(rows), mode)
    return ComparedDumps(result, both, seen)


# --- pair


class PairTask(msgspec.Struct, frozen=True):
    """Two dumps and what is wanted of them; it can be sent to another process.

    Args:
        pair: where the dumps are.
        options: how to match and judge.
        output: folder for the files; ``None`` writes none.
        stamp: the time in the names of the files.
        xlsx: write a workbook and not CSV.
        tensor_log: log the metrics of each pair of tensors.
        rank: the number of the rank.
    """

    pair: DumpPair
    options: Options
    output: str | None
    stamp: str
    xlsx: bool = False
    tensor_log: bool = False
    rank: int = 0

    @property
    def folder(self) -> str | None:
        """The folder of its files."""
        return None if self.output is None else os.path.join(self.output, self.pair.step)

    @property
    def paths(self) -> list[str]:
        """The files or folders of all processes that it reads."""
        return [self.pair.target, self.pair.golden]

    def absolute(self) -> Self:
        """The task for a process that runs in another folder."""
        target, golden = map(os.path.abspath, (self.pair.target, self.pair.golden))
        before = self.pair.before and (os.path.abspath(self.pair.before[0]), os.path.abspath(self.pair.before[1]))
        output = None if self.output is None else os.path.abspath(self.output)
        pair = replace(self.pair, target=target, golden=golden, before=before)
        return replace(self, pair=pair, options=self.options.absolute(), output=output)


def summarise_pair(task: PairTask, watch: ProgressCallback | None = None) -> Summary:
    """Compare two dumps, write the table and keep the summary alone."""
    return summarise(compare_pair(task, watch).result)


def compare_pair(
    task: PairTask,
    watch: ProgressCallback | None = None,
    dumps: tuple[Dump, Dump] | None = None,
    *,
    values: bool = True,
    keeps_judged: bool = False,
) -> ComparedDumps:
    """Load two dumps, match, measure and judge their items, and write the table.

    Args:
        task: where the dumps are, and what is wanted of them.
        watch: a callback for how far the work is.
        dumps: these if they are loaded.
        values: compare real data by its values; otherwise by its statistics, and nothing is written.
        keeps_judged: as for `compared`.
    """
    pair = task.pair
    if dumps is None:
        if watch is not None:
            watch("reading", 0, None)
        dumps = read(pair.target), read(pair.golden)
    comparison = Comparison(*dumps, task.options, pair.before)
    found = compared(comparison, values=values, release=True, watch=watch, keeps_judged=keeps_judged)
    result = found.result
    result.label, result.step = pair.label, pair.step
    result.left_out, result.missing = pair.left_out, pair.missing
    if values:
        _write(task, result, watch)
        if task.tensor_log and result.mode is Mode.TENSOR:
            print_metrics(result.rows, result.algorithms)
    return found


def _write(task: PairTask, result: ComparisonResult, watch: ProgressCallback | None) -> None:
    """Write the table and the mappings; `result` keeps their paths."""
    if task.folder is None:
        return
    if watch is not None:
        watch("writing", 0, None)
    files.make_folder(task.folder)
    result.shows_distances = task.options.distances and not result.debug
    stem = _file(task, "debug_compare_result" if result.debug else "compare_result")
    result.tables = tables.write(result, stem, task.xlsx)
    if result.data_mapping is not None:
        write_names(f"{_file(task, 'data_mapping')}.yaml", result.data_mapping)


def _file(task: PairTask, name: str) -> str:
    """The path of a file of the pair without its suffix."""
    return os.path.join(task.folder or "", "_".join(filter(None, (name, task.pair.label, task.stamp))))
