"""The most suspicious calls of a comparison, run again on the other side's inputs by what the caller hands in.

Nothing here knows a framework: the caller has its adapter, and says what came of a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Callable

from probe.common.dump.reading.dump import Dump, read
from probe.compare.output.summary import Summary
from probe.compare.result import Divergence, Rerun, Unexplained

RunAgain = Callable[[Dump, str, Dump, str], Rerun]
"""Runs a record of the first dump on the inputs of a record of the second one; it does not raise."""
MOST = 5
"""The number of calls of a pair of dumps that are run again: the first divergence, and those behind it."""


def with_reruns(summaries: Iterable[Summary], run_again: RunAgain) -> Iterator[Summary]:
    """Summaries that say of their divergences what came of them when they were run again."""
    for summary in summaries:
        found = summary.divergence
        if found is None:
            yield summary
            continue
        # The comparison has released their records.
        target, golden = read(summary.target), read(summary.golden)
        yield replace(summary, divergence=_run_again(found, target, golden, run_again))


def _run_again(divergence: Divergence, target: Dump, golden: Dump, run_again: RunAgain) -> Divergence:
    def again(call: Unexplained) -> Unexplained:
        return replace(call, rerun=run_again(target, call.record, golden, call.golden_record))

    calls = [divergence.first, *divergence.suspects]
    first, *suspects = [*map(again, calls[:MOST]), *calls[MOST:]]
    return replace(divergence, first=first, suspects=suspects)
