"""A comparison for Python and notebooks: two paths in, the verdict that ``msprobe compare`` prints out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Callable

import msgspec
from msgspec.structs import replace

from probe.common import harmless_text
from probe.common.dump.reading.dump import Dump, read
from probe.compare.options import Options
from probe.compare.result import CANNOT_TELL, DIVERGENCE, NONE, Answer, Divergence, Rerun, Unexplained
from probe.compare.runner import summaries
from probe.compare.summary import Summary, first_of, is_unjudged
from probe.compare.summary_text import headline, styled_lines

if TYPE_CHECKING:
    from probe.shards.split import Split

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


# --- in python


class Verdict(msgspec.Struct, frozen=True):
    """The result of a comparison; ``print`` of it is the text of ``msprobe compare``."""

    summaries: list[Summary]
    """One for each pair of ranks and steps, in order."""

    @property
    def divergence(self) -> Divergence | None:
        """First divergence: record, reason, cause, stacks; ``None`` if nothing diverges."""
        first = first_of(self.summaries)
        return None if first is None else first.divergence

    @property
    def conclusion(self) -> Answer:
        """The answer in one word, as ``divergence.answer`` of ``--json``: ``divergence``, ``none``, ``cannot_tell``."""
        if self.divergence is not None:
            return DIVERGENCE
        return CANNOT_TELL if is_unjudged(self.summaries) else NONE

    @property
    def answer(self) -> list[str]:
        """First lines of the text: the divergence and its cause, that there is none, or why it cannot be told."""
        return [text for text, _ in headline(self.summaries)]

    def __repr__(self) -> str:
        return f"<Verdict: {self.answer[0]}>"

    def __str__(self) -> str:
        return "\n".join(text for text, _ in styled_lines(self.summaries))

    def _repr_html_(self) -> str:
        found = "".join(map(harmless_text.paragraph, self.answer))
        rows = [
            (one.step, one.label, one.rows, *one.counts.values(), one.suspects[0].record if one.suspects else "")
            for one in self.summaries
        ]
        results = self.summaries[0].counts
        return found + harmless_text.table(("step", "process", "rows", *results, "first finding"), rows)


def verdict(
    target: str | os.PathLike[str],
    golden: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    options: Options | None = None,
    splits: Sequence[Split] = (),
    run_again: RunAgain | None = None,
) -> Verdict:
    """Compare two runs as ``msprobe compare`` does.

    Args:
        target: the run under test: dump.json, debug.json, the folder of a process or a step, or a folder of steps.
        golden: the baseline, in the same form.
        output: a folder for the tables; by default none is written.
        options: how to match and judge.
        splits: how target and golden run are split over ranks, which are merged then.
        run_again: what runs calls that diverge again; by default nothing is.

    Raises:
        MsprobeException: the two cannot be compared, and why.

    Example:
        >>> print(probe.verdict("run_a", "run_b"))  # doctest: +SKIP
    """
    folder = None if output is None else os.fspath(output)
    found = summaries(os.fspath(target), os.fspath(golden), folder, options, splits=splits)
    return Verdict(list(found if run_again is None else with_reruns(found, run_again)))
