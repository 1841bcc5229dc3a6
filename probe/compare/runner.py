"""Everything two paths hold, compared and written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from probe.common import files, log
from probe.common.dump.layout import TENSOR_FOLDER, folder_of, has_real_data
from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.common.match.dump_pairs import Place, locate
from probe.common.match.mapping_files import write_names
from probe.common.parallel.run import run
from probe.common.parallel.tasks import Outcome, Outcomes, ProcessDied, Where, processors
from probe.common.progress import Watch
from probe.compare import two_processes
from probe.compare.comparison import Comparison
from probe.compare.option_checks import check
from probe.compare.options import Options
from probe.compare.output import table_files
from probe.compare.output.summary import Summary, conclude, summarise
from probe.compare.output.summary_text import hints, print_metrics
from probe.compare.ranks.first_difference import (
    Entry,
    Rank,
    differences_as_json,
    essentials,
    first_differences,
    of_rank,
    rank_as_json,
)
from probe.compare.result import ComparisonResult

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Below these, of all pairs together, processes do not pay: they start in a quarter of a second, and in two with torch,
# which each of them needs for real data.
_SMALL_TEXT = 8_000_000
_SMALL_VALUES = 200_000_000
_FEW_TENSORS = 4_000


def compare(
    target: str, golden: str, output: str | None = None, options: Options | None = None, xlsx: bool = False
) -> Generator[ComparisonResult, None, None]:
    """Compare two files or folders; each pair of ranks and steps gives one result, when it is asked for.

    Everything is done in this process, so that the results are whole: every row is there. `summaries` compares several
    pairs at once and keeps no rows.

    Args:
        target: the run under test: dump.json, debug.json, a step's folder, or a folder of steps.
        golden: the run it is held against, in the same form.
        output: folder for the tables, made where it is missing; ``None`` writes none.
        options: how to match and judge.
        xlsx: write a workbook and not CSV.

    Raises:
        MsprobeException: the two cannot be compared; with several ranks, one that cannot be read is logged and left
            out, and this is raised when none can.
    """
    pairs = _pairs(locate(target, golden), output, options, xlsx)
    yield from _readable(pairs, (_attempt(pair) for pair in pairs), target, golden)


def summaries(
    target: str,
    golden: str,
    output: str | None = None,
    options: Options | None = None,
    xlsx: bool = False,
    *,
    where: Where | None = None,
    tensor_log: bool = False,
    watch: Watch | None = None,
) -> Generator[Summary, None, None]:
    """Compare as `compare` does, but several pairs at once, and give the summary of each, in order.

    Rows stay where they are made: a table of a million rows does not pass from one process to another.

    Args:
        where: which processes compare; by default those of this machine.
        tensor_log: a log line for each pair of tensors, with its metrics.
        watch: is told how far the work is.
    """
    pairs = _pairs(locate(target, golden), output, options, xlsx, tensor_log)
    work = _summarise_in_halves if _is_alone(pairs, where or Where()) else _summarise
    yield from _readable(pairs, _run(where, work, pairs, watch), target, golden)


def _is_alone(pairs: list[_Pair], where: Where) -> bool:
    """Whether a single large pair has this machine's processors for itself, and a table of text is wanted of it."""
    pair = pairs[0]
    if len(pairs) > 1 or where.dask is not None or (where.jobs or processors()) < 2:
        return False
    if pair.folder is None or pair.xlsx or pair.tensor_log or has_real_data(pair.place.target):
        return False
    return _takes_time(pairs)


@dataclass(frozen=True)
class _Pair:
    """Two dumps and what is wanted of them; it can be sent to another process."""

    place: Place
    options: Options
    output: str | None
    stamp: str
    xlsx: bool = False
    tensor_log: bool = False
    rank: int = 0

    @property
    def folder(self) -> str | None:
        """Where its files go."""
        return None if self.output is None else os.path.join(self.output, self.place.step)

    def absolute(self) -> _Pair:
        """The same for a process that runs in another folder."""
        target, golden = map(os.path.abspath, (self.place.target, self.place.golden))
        output = None if self.output is None else os.path.abspath(self.output)
        place = replace(self.place, target=target, golden=golden)
        return replace(self, place=place, options=self.options.absolute(), output=output)


def _pairs(
    places: list[Place],
    output: str | None,
    options: Options | None,
    xlsx: bool = False,
    tensor_log: bool = False,
    values: bool = True,
) -> list[_Pair]:
    options = options or Options()
    # Once, and not as an error of every pair.
    check(places, options, values)
    stamp = time.strftime("%Y%m%d%H%M%S")
    if output is not None:
        files.make_folder(output)
    return [
        _Pair(place, options, output, stamp, xlsx, tensor_log, _number(place.label, index))
        for _, of_step in groupby(places, key=attrgetter("step"))
        for index, place in enumerate(of_step)
    ]


def _attempt(pair: _Pair) -> Outcome[ComparisonResult]:
    try:
        return Outcome(_compared(pair))
    except MsprobeException as error:
        return Outcome(error=error)


def _summarise(pair: _Pair, watch: Watch | None = None) -> Summary:
    result = _compared(pair, watch)
    if pair.tensor_log:
        print_metrics(result)
    return summarise(result)


def _summarise_in_halves(pair: _Pair, watch: Watch | None = None) -> Summary:
    assert pair.folder is not None
    # A bar on the terminal would be a thread, beside which nothing is forked.
    comparison = _comparison(pair)
    if two_processes.can_be_compared(comparison):
        files.make_folder(pair.folder)
        path = os.path.join(pair.folder, f"{_stem(False, pair.place.label, pair.stamp)}.csv")
        found = two_processes.compare(comparison, path, watch)
        if found is not None:
            result, counted = found
            result.label, result.step = pair.place.label, pair.place.step
            return conclude(result, counted)
    return summarise(_written(pair, _finished(pair, comparison, watch=watch), watch))


def _compared(pair: _Pair, watch: Watch | None = None) -> ComparisonResult:
    return _written(pair, _one(pair, watch=watch), watch)


def _written(pair: _Pair, result: ComparisonResult, watch: Watch | None) -> ComparisonResult:
    if pair.folder is not None:
        if watch is not None:
            watch("writing", 0, None)
        files.make_folder(pair.folder)
        result.tables = table_files.write(result, os.path.join(pair.folder, stem(result, pair.stamp)), pair.xlsx)
        if result.data_mapping is not None:
            write_names(_mapping_file(pair.folder, "data_mapping", result, pair.stamp), result.data_mapping)
        if result.proposal is not None:
            from probe.common.match.layers import proposal

            result.layer_mapping = _mapping_file(pair.folder, "layer_mapping", result, pair.stamp)
            proposal.write(result.layer_mapping, result.proposal, result.target, result.golden)
    return result


def _mapping_file(folder: str, name: str, result: ComparisonResult, stamp: str) -> str:
    return os.path.join(folder, "_".join(part for part in (name, result.label, stamp) if part) + ".yaml")


def _readable(pairs: list[_Pair], outcomes: Outcomes[T], target: str, golden: str) -> Generator[T, None, None]:
    """The values of `outcomes`; a pair without one is logged and left out, unless there is no other."""
    found = False
    with closing(outcomes):
        for pair, outcome in zip(pairs, outcomes):
            log.show(outcome.said)
            if outcome.value is not None:
                found = True
                yield outcome.value
                continue
            if isinstance(outcome.error, ProcessDied):
                _clear_up(pair, outcome.error)
            if len(pairs) == 1 or not isinstance(outcome.error, MsprobeException):
                raise outcome.error or AssertionError(pair)
            log.error(f"{pair.place} is left out: {outcome.error}")
    if not found:
        raise MsprobeException(f"{target} and {golden}: no pair of ranks could be compared.")


class _Work(Protocol[T_co]):
    """What is done with a pair; it says how far it is where it is the only one."""

    def __call__(self, pair: _Pair, watch: Watch | None = None) -> T_co: ...


def _run(where: Where | None, work: _Work[T], pairs: list[_Pair], watch: Watch | None) -> Outcomes[T]:
    where = where or Where()
    if where.dask is not None:
        return run(where, work, [pair.absolute() for pair in pairs], watch)
    if not _takes_time(pairs):
        where, watch = Where(where.jobs or 1), None
    if len(pairs) == 1:
        return run(where, partial(work, watch=watch), pairs)
    return run(where, work, pairs, watch)


def _takes_time(pairs: list[_Pair]) -> bool:
    """Whether the work takes longer than starting processes for it."""
    if pairs[0].options.algorithms:
        return True  # Nobody knows.
    text = tensors = values = 0
    for folder in (folder_of(path) for pair in pairs for path in (pair.place.target, pair.place.golden)):
        text += sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
        if has_real_data(folder):
            sizes = [entry.stat().st_size for entry in os.scandir(os.path.join(folder, TENSOR_FOLDER))]
            tensors, values = tensors + len(sizes), values + sum(sizes)
        if text > _SMALL_TEXT or tensors > _FEW_TENSORS or values > _SMALL_VALUES:
            return True
    return False


def _clear_up(pair: _Pair, death: ProcessDied) -> None:
    """Remove what the process that worked on `pair` has left half written."""
    if pair.folder is not None:
        files.remove_unfinished(pair.folder, death.pid)


@dataclass(frozen=True)
class Analysis:
    """The first differences of one step, and the files that tell of them."""

    step: str
    found: list[tuple[Rank, Entry]]
    files: list[str]


def analyse(
    target: str,
    golden: str,
    output: str,
    options: Options | None = None,
    *,
    where: Where | None = None,
    watch: Watch | None = None,
) -> Generator[Analysis, None, None]:
    """Find where the ranks of each step part first; `where` and `watch` are those of `summaries`.

    Raises:
        MsprobeException: the two cannot be compared, or a rank cannot be read: what is missing might be the cause.
    """
    pairs = _pairs(locate(target, golden), output, options, values=False)
    if pairs[0].options.algorithms:
        log.warning("the first difference is sought in statistics: the metrics of --algorithms are not used.")
    with closing(_run(where, _rank, pairs, watch)) as outcomes:
        for step, of_step in groupby(zip(pairs, outcomes), key=lambda pair_and_outcome: pair_and_outcome[0].place.step):
            ranks = [_whole(pair, outcome) for pair, outcome in of_step]
            written = [rank.file for rank in ranks]
            found = first_differences([rank.rank for rank in ranks])
            if found:
                written.append(os.path.join(output, step, f"diff_analyze_{time.time_ns()}.json"))
                _write_json(written[-1], differences_as_json(found))
            yield Analysis(step, found, written)


@dataclass(frozen=True)
class _RankRead:
    rank: Rank
    file: str


def _rank(pair: _Pair, watch: Watch | None = None) -> _RankRead:
    result = _one(pair, values=False, watch=watch)
    for hint in hints(result):
        log.warning(f"{pair.place}: {hint}.")
    rank = of_rank(pair.rank, result)
    assert pair.folder is not None
    files.make_folder(pair.folder)
    path = os.path.join(pair.folder, f"compare_result_rank{rank.number}_{pair.stamp}.json")
    _write_json(path, rank_as_json(rank))
    return _RankRead(essentials(rank), path)


def _whole(pair: _Pair, outcome: Outcome[_RankRead]) -> _RankRead:
    log.show(outcome.said)
    if outcome.value is not None:
        return outcome.value
    if isinstance(outcome.error, ProcessDied):
        _clear_up(pair, outcome.error)
        raise MsprobeException(f"{pair.place}: {outcome.error}")
    raise outcome.error or AssertionError(pair)


def _number(label: str, index: int) -> int:
    digits = label.removeprefix("rank")
    return int(digits) if digits.isdigit() else index


def _write_json(path: str, content: Any) -> None:
    with files.replacing(path) as stream:
        stream.write(json.dumps(content).encode())


def _one(pair: _Pair, values: bool = True, watch: Watch | None = None) -> ComparisonResult:
    if watch is not None:
        watch("reading", 0, None)
    return _finished(pair, _comparison(pair), values, watch)


def _comparison(pair: _Pair) -> Comparison:
    return Comparison(read(pair.place.target), read(pair.place.golden), pair.options, release=True)


def _finished(
    pair: _Pair, comparison: Comparison, values: bool = True, watch: Watch | None = None
) -> ComparisonResult:
    comparison.watch = watch
    result = comparison.run(values)
    result.label, result.step = pair.place.label, pair.place.step
    return result


def stem(result: ComparisonResult, stamp: str) -> str:
    """The name of a table's file without its suffix."""
    return _stem(result.debug, result.label, stamp)


def _stem(debug: bool, label: str, stamp: str) -> str:
    prefix = "debug_compare_result" if debug else "compare_result"
    return "_".join(part for part in (prefix, label, stamp) if part)
