"""Everything that two paths hold, compared pair by pair, in this process or in several."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from probe.common import files, log
from probe.common.align.dump_pairs import DumpPair, locate
from probe.common.dump.layout import are_large
from probe.common.errors import MsprobeException
from probe.common.parallel.run_tasks import Work, run_where_it_pays
from probe.common.parallel.tasks import Outcomes, ProcessDied, Where, finished
from probe.common.progress import ProgressCallback
from probe.compare.followers import followed
from probe.compare.option_checks import check
from probe.compare.options import Options
from probe.compare.output.summary import Summary
from probe.compare.pair import PairTask, summarise_pair

if TYPE_CHECKING:
    from probe.shards.split import Split

T = TypeVar("T")
AnyTask = TypeVar("AnyTask", bound=PairTask)


def summaries(
    target: str,
    golden: str,
    output: str | None = None,
    options: Options | None = None,
    xlsx: bool = False,
    *,
    where: Where | None = None,
    tensor_log: bool = False,
    watch: ProgressCallback | None = None,
    left_out: Callable[[str], None] = log.error,
    splits: Sequence[Split] = (),
) -> Generator[Summary, None, None]:
    """Compare two files or folders; each pair of ranks and steps gives one summary, in order.

    Rows stay where they are made: a table of a million rows does not pass from one process to another.

    Args:
        target: the run under test: dump.json, debug.json, a step's folder, or a folder of steps.
        golden: the run it is held against, in the same form.
        output: folder for the tables, made where it is missing; ``None`` writes none.
        options: how to match and judge.
        xlsx: write a workbook and not CSV.
        where: which processes compare; by default those of this machine.
        tensor_log: a log line for each pair of tensors, with its metrics.
        watch: a callback for how far the work is.
        left_out: takes a sentence for each pair that cannot be compared.
        splits: how target and golden run are split over ranks, which are merged then; each copy of the model gives one
            summary.

    Raises:
        MsprobeException: the two cannot be compared; with several ranks, one that cannot be read is told and left
            out, and this is raised when none can.
    """
    tasks = pair_tasks(_pairs(target, golden, splits), output, options, xlsx, tensor_log, values=not splits)
    if splits:
        from probe.compare.ranks.merged import MergedPairTask, summarise_merged

        of_ranks = [MergedPairTask.of(task, splits) for task in tasks]
        outcomes = run_pairs(where, summarise_merged, of_ranks, watch)
        copies = readable(of_ranks, outcomes, target, golden, left_out)
        yield from followed(chain.from_iterable(copies))
        return
    yield from followed(readable(tasks, run_pairs(where, summarise_pair, tasks, watch), target, golden, left_out))


def _pairs(target: str, golden: str, splits: Sequence[Split]) -> list[DumpPair]:
    """The pairs to compare: the steps of two runs whose ranks are merged, and otherwise their processes."""
    if not splits:
        return locate(target, golden)
    # Few runs are split, and the others need not wait for it.
    from probe.compare.ranks.merged import merged_pairs

    return merged_pairs(target, golden)


def pair_tasks(
    pairs: list[DumpPair],
    output: str | None,
    options: Options | None,
    xlsx: bool = False,
    tensor_log: bool = False,
    values: bool = True,
) -> list[PairTask]:
    """The tasks for `pairs`.

    Raises:
        MsprobeException: the options do not fit, which is known before any work.
    """
    options = options or Options()
    # Once, and not as an error of every pair.
    check(pairs, options, values)
    stamp = time.strftime("%Y%m%d%H%M%S")
    if output is not None:
        files.make_folder(output)
    return [
        PairTask(pair, options, output, stamp, xlsx, tensor_log, _rank(pair.label, index))
        for _, of_step in groupby(pairs, key=attrgetter("step"))
        for index, pair in enumerate(of_step)
    ]


def _rank(label: str, index: int) -> int:
    digits = label.removeprefix("rank")
    return int(digits) if digits.isdigit() else index


def run_pairs(
    where: Where | None, work: Work[AnyTask, T], tasks: list[AnyTask], watch: ProgressCallback | None
) -> Outcomes[T]:
    """Do `work` on every pair, in processes where these pay; outcomes come in the order of the pairs.

    What a process that died has left half written is removed.
    """
    with closing(run_where_it_pays(where, work, tasks, watch, _takes_time(tasks))) as outcomes:
        for task, outcome in zip(tasks, outcomes):
            if isinstance(outcome.error, ProcessDied) and task.folder is not None:
                files.remove_unfinished(task.folder, outcome.error.pid)
            yield outcome


def _takes_time(tasks: Sequence[PairTask]) -> bool:
    """True if the work takes longer than starting processes for it."""
    if tasks[0].options.algorithms:
        return True  # Nobody knows.
    return are_large(path for task in tasks for path in task.paths)


def readable(
    tasks: Sequence[PairTask],
    outcomes: Outcomes[T],
    target: str,
    golden: str,
    left_out: Callable[[str], None] = log.error,
) -> Generator[T, None, None]:
    """The values of `outcomes` of `tasks`; `left_out` takes a sentence for each pair without one.

    Raises:
        MsprobeException: none could be compared.
    """
    found = False
    with closing(finished(tasks, outcomes, (MsprobeException,))) as done:
        for task, outcome in done:
            if outcome.value is None:
                left_out(f"{task.pair} is left out: {outcome.error}")
                continue
            found = True
            yield outcome.value
    if not found:
        raise MsprobeException(f"{target} and {golden}: no pair of ranks could be compared.")
