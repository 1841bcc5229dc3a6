"""One pair of dumps: loaded, compared and written."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from typing_extensions import Self

from probe.common import files
from probe.common.align.dump_pairs import DumpPair
from probe.common.align.mapping_files import write_names
from probe.common.dump.reading.dump import Dump, read
from probe.common.progress import ProgressCallback
from probe.compare.comparison import ComparedDumps, compare_dumps, compared
from probe.compare.options import Options
from probe.compare.output import table_files
from probe.compare.output.summary import Summary, summarise
from probe.compare.output.summary_text import print_metrics
from probe.compare.result import ComparisonResult, Mode
from probe.compare.two_dumps import Comparison


@dataclass(frozen=True)
class PairTask:
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
        """The same task for a process that runs in another folder."""
        target, golden = map(os.path.abspath, (self.pair.target, self.pair.golden))
        before = self.pair.before and (os.path.abspath(self.pair.before[0]), os.path.abspath(self.pair.before[1]))
        output = None if self.output is None else os.path.abspath(self.output)
        pair = replace(self.pair, target=target, golden=golden, before=before)
        return replace(self, pair=pair, options=self.options.absolute(), output=output)


def summarise_pair(task: PairTask, watch: ProgressCallback | None = None) -> Summary:
    """Compare two dumps, write the table and keep the summary alone."""
    result = compare_pair(task, watch)
    if task.tensor_log and result.mode is Mode.TENSOR:
        print_metrics(result.rows, result.algorithms)
    return summarise(result, task.options.rules)


def compare_pair(task: PairTask, watch: ProgressCallback | None = None) -> ComparisonResult:
    """Load two dumps, match, measure and judge their items, and write the table."""
    if watch is not None:
        watch("reading", 0, None)
    target, golden = _load(task)
    return compare_and_write(task, target, golden, watch).result


def compare_statistics(task: PairTask, watch: ProgressCallback | None = None) -> ComparisonResult:
    """Load two dumps, match, measure and judge their items by statistics, and write nothing."""
    if watch is not None:
        watch("reading", 0, None)
    target, golden = _load(task)
    before = task.pair.before
    result = compare_dumps(target, golden, task.options, values=False, release=True, watch=watch, before=before)
    _note_pair(result, task.pair)
    return result


def _note_pair(result: ComparisonResult, pair: DumpPair) -> None:
    result.label, result.step = pair.label, pair.step
    result.left_out, result.missing = pair.left_out, pair.missing


def _load(task: PairTask) -> tuple[Dump, Dump]:
    return read(task.pair.target), read(task.pair.golden)


def compare_and_write(
    task: PairTask, target: Dump, golden: Dump, watch: ProgressCallback | None = None, keeps_judged: bool = False
) -> ComparedDumps:
    """Do what `compare_pair` does with dumps that are loaded; `keeps_judged` as for `compared`."""
    comparison = Comparison(target, golden, task.options, task.pair.before)
    found = compared(comparison, release=True, watch=watch, keeps_judged=keeps_judged)
    _note_pair(found.result, task.pair)
    _write(task, found.result, watch)
    return found


def _write(task: PairTask, result: ComparisonResult, watch: ProgressCallback | None) -> None:
    """Write the table and the mappings; `result` keeps their paths."""
    if task.folder is None:
        return
    if watch is not None:
        watch("writing", 0, None)
    files.make_folder(task.folder)
    stem = os.path.join(task.folder, _stem(task, result.debug))
    result.shows_distances = not (task.options.rules.is_by_record or result.debug)
    result.tables = table_files.write(result, stem, task.xlsx, task.options.rules.levels)
    if result.data_mapping is not None:
        write_names(_mapping_file(task, task.folder, "data_mapping"), result.data_mapping)


def _stem(task: PairTask, debug: bool) -> str:
    """The name of a table's file without its suffix."""
    return _joined("debug_compare_result" if debug else "compare_result", task)


def _mapping_file(task: PairTask, folder: str, name: str) -> str:
    return os.path.join(folder, f"{_joined(name, task)}.yaml")


def _joined(name: str, task: PairTask) -> str:
    return "_".join(part for part in (name, task.pair.label, task.stamp) if part)
