"""Everything that two paths hold, compared pair by pair, in this process or in several."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from probe.common import files, log
from probe.common.align.dump_pairs import DumpPair, locate
from probe.common.dump.layout import are_large
from probe.common.dump.reading.records import INPUT
from probe.common.errors import MsprobeException
from probe.common.parallel.run_tasks import Work, run_where_it_pays
from probe.common.parallel.tasks import Outcomes, ProcessDied, Where, finished
from probe.common.progress import ProgressCallback
from probe.compare.comparison import PairTask, summarise_pair
from probe.compare.options import Options, check
from probe.compare.result import Carried, Difference, Origin, Unexplained
from probe.compare.summary import Summary

if TYPE_CHECKING:
    from probe.shards.split import Split


class Followers:
    """Finds the steps and ranks that follow others, given one step after the other."""

    def __init__(self) -> None:
        self._origins: dict[str, tuple[Origin, Carried | None]] = {}
        """The steps that diverged by themselves, by rank, with the parameters that they had."""

    def add_step(self, of_step: Sequence[Summary]) -> list[Summary]:
        """The summaries of the ranks of a step; those that follow a divergence say which, and no other one."""
        found = [self._after_steps(summary) for summary in of_step]
        own = [
            (summary.divergence.first, summary)
            for summary in found
            if summary.divergence is not None and not summary.divergence.first.communicates
        ]
        if own:
            _, first = min(own, key=lambda each: each[0].place)
            found = [_after_communication(summary, _origin(first)) for summary in found]
        for summary in found:
            if summary.divergence is not None:
                self._origins.setdefault(summary.label, (_origin(summary), summary.carried))
        return found

    def _after_steps(self, summary: Summary) -> Summary:
        if summary.follows is not None:
            return summary
        of_rank = self._origins.get(summary.label)
        if of_rank is not None and _is_reached(summary, of_rank[1]):
            return _following(summary, of_rank[0])
        for origin, carried in self._origins.values():
            # Gradients of all ranks are summed where nothing records it; parameters that differ afterwards tell.
            if summary.carried is not None and _is_reached(summary, carried):
                return _following(summary, origin)
        return summary


def followed(found: Iterable[Summary]) -> Generator[Summary, None, None]:
    """The summaries, step by step; those that a divergence has reached follow it."""
    followers = Followers()
    for _, of_step in groupby(found, key=attrgetter("step")):
        yield from followers.add_step(list(of_step))


def _is_reached(summary: Summary, earlier: Carried | None) -> bool:
    now = summary.carried
    if now is None or earlier is None:
        first = None if summary.divergence is None else summary.divergence.first
        return first is None or _is_of_input(first)
    return now.differ and (now.target != earlier.target or now.golden != earlier.golden)


def _after_communication(summary: Summary, origin: Origin) -> Summary:
    if summary.divergence is None or not summary.divergence.first.communicates:
        return summary
    return _following(summary, origin)


def _following(summary: Summary, origin: Origin) -> Summary:
    """The summary without a divergence; inputs that nothing recorded explains, such as data, are still differences."""
    found = summary.divergence
    diverged = [] if found is None else [found.first, *found.suspects]
    data = [
        Difference(each.record, each.golden_record, each.item, each.reason, labelled_reason=each.labelled_reason)
        for each in diverged
        if _is_of_input(each)
    ]
    return replace(summary, divergence=None, follows=origin, with_effect=[*summary.with_effect, *data])


def _is_of_input(found: Unexplained) -> bool:
    return found.item.startswith(f"{found.record}.{INPUT}.")


def _origin(summary: Summary) -> Origin:
    return Origin(summary.step, summary.label)


# --- runner


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
        golden: the run it is compared with, in the same form.
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
        from probe.compare.merged_runs import MergedPairTask, summarise_merged

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
    from probe.compare.merged_runs import merged_pairs

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
