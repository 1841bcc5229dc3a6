"""The first divergence between the ranks of each step, as files and as data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from probe.common import files, log
from probe.common.align.dump_pairs import locate
from probe.common.errors import MsprobeException
from probe.common.parallel.tasks import Outcome, ProcessDied, Where, finished
from probe.common.progress import ProgressCallback
from probe.compare.followers import Followers
from probe.compare.options import Options
from probe.compare.output.summary import Summary, first_of, is_unjudged, summarise
from probe.compare.output.summary_text import headline, hints
from probe.compare.pair import PairTask, compare_pair
from probe.compare.ranks.first_difference import (
    Rank,
    RankRecord,
    differences_as_json,
    essentials,
    first_differences,
    of_rank,
    rank_as_json,
)
from probe.compare.runner import pair_tasks, run_pairs


@dataclass(frozen=True)
class Analysis:
    """The first differences of one step, and the files that describe them."""

    step: str
    found: list[tuple[Rank, RankRecord]]
    files: list[str]
    summaries: list[Summary]
    """Summaries of the comparisons of the ranks by their statistics."""

    @property
    def answer(self) -> str:
        """The answer for a step in which no rank differs by the threshold; empty for other steps."""
        if self.found:
            return ""
        said = headline(self.summaries)[0][0]
        if first_of(self.summaries) is not None or any(each.follows is not None for each in self.summaries):
            return f"no rank differs by half; {said}"
        return said if is_unjudged(self.summaries) else "no rank differs"


def analyse(
    target: str,
    golden: str,
    output: str,
    options: Options | None = None,
    *,
    where: Where | None = None,
    watch: ProgressCallback | None = None,
) -> Generator[Analysis, None, None]:
    """Find where the ranks of each step diverge first; `where` and `watch` are those of `runner.summaries`.

    Raises:
        MsprobeException: the two cannot be compared, or a rank cannot be read: what is missing might be the cause.
    """
    tasks = pair_tasks(locate(target, golden), output, options, values=False)
    if tasks[0].options.algorithms:
        log.warning("the first difference is sought in statistics: the metrics of --algorithms are not used.")
    with closing(finished(tasks, run_pairs(where, _read_rank, tasks, watch), (ProcessDied,))) as done:
        followers = Followers()
        for step, of_step in groupby(done, key=lambda task_and_outcome: task_and_outcome[0].pair.step):
            ranks = [_whole(task, outcome) for task, outcome in of_step]
            written = [rank.file for rank in ranks]
            found = first_differences([rank.rank for rank in ranks])
            if found:
                written.append(os.path.join(output, step, f"diff_analyze_{time.time_ns()}.json"))
                _write_json(written[-1], differences_as_json(found))
            yield Analysis(step, found, written, followers.add_step([rank.summary for rank in ranks]))


@dataclass(frozen=True)
class _RankRead:
    rank: Rank
    file: str
    summary: Summary


def _read_rank(task: PairTask, watch: ProgressCallback | None = None) -> _RankRead:
    result = compare_pair(task, watch, values=False).result
    for hint in hints(result):
        log.warning(f"{task.pair}: {hint}.")
    rank = of_rank(task.rank, result)
    assert task.folder is not None
    files.make_folder(task.folder)
    path = os.path.join(task.folder, f"compare_result_rank{rank.number}_{task.stamp}.json")
    _write_json(path, rank_as_json(rank))
    return _RankRead(essentials(rank), path, summarise(result))


def _whole(task: PairTask, outcome: Outcome[_RankRead]) -> _RankRead:
    if outcome.value is None:
        raise MsprobeException(f"{task.pair}: {outcome.error}")
    return outcome.value


def _write_json(path: str, content: Any) -> None:
    with files.replacing(path) as stream:
        stream.write(json.dumps(content).encode())
