"""The face of `compare`: all that another question may ask of it, which is what the graph shows.

`evidence_of` compares two dumps and keeps what was seen on the way: the calls side by side, and of each pair a
`JudgedCall`. A `Summary` is what ``msprobe compare`` says of them. All else here is of `compare` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

from probe.common import log
from probe.common.align.calls import Calls, Row
from probe.common.align.dump_pairs import locate
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.stack_text import users_line
from probe.common.parallel.tasks import Where
from probe.common.progress import ProgressCallback
from probe.compare.comparison import ComparedDumps, PairTask, compare_pair, compared
from probe.compare.judgement import Judgement
from probe.compare.options import Comparison, Options, check
from probe.compare.result import GOLDEN, TARGET, ComparisonResult, Difference, Divergence, Mode, Unexplained
from probe.compare.runner import Followers, followed, pair_tasks, readable, run_pairs
from probe.compare.summary import Summary, first_of, summarise
from probe.compare.summary_text import headline, hints, print_metrics
from probe.compare.tables import VALUES
from probe.compare.verdict.conclusion import EXPLAINED, SAME, STRUCTURE, UNEXPLAINED, JudgedCall
from probe.compare.verdict.facts import Call, TypePair, distance, goes_in
from probe.compare.verdict.findings import NONFINITE_ON_ONE_SIDE

__all__ = [
    "EXPLAINED",
    "GOLDEN",
    "NONFINITE_ON_ONE_SIDE",
    "SAME",
    "STRUCTURE",
    "TARGET",
    "UNEXPLAINED",
    "VALUES",
    "Difference",
    "Divergence",
    "Evidence",
    "Followers",
    "JudgedCall",
    "Judgement",
    "Mode",
    "Options",
    "Prepare",
    "Summary",
    "Unexplained",
    "check",
    "evidence_of",
    "first_of",
    "followed",
    "headline",
    "hints",
    "print_metrics",
    "summaries_and",
    "users_line",
]  # fmt: skip

T = TypeVar("T")


class ShownItem(NamedTuple):
    """The item that shows a divergence."""

    row: Row
    parameter: str
    """The parameter that it is, as its module calls it; empty of any other item."""
    is_input: bool
    """True if it goes into the call."""
    is_nonfinite: bool
    """True if one side has a NaN or an infinity there, and the other has none."""


@dataclass(frozen=True)
class Evidence:
    """Two dumps compared, and what was seen on the way."""

    options: Options
    result: ComparisonResult
    calls: Calls
    """The calls of both sides with their items."""
    aligned: Sequence[Call]
    """The calls side by side, as far as both sides can have made them; none of saved values."""
    judged: Sequence[JudgedCall]
    """The findings on each pair, in the order in which they were judged."""
    types: frozenset[TypePair] = frozenset()
    """The pairs of dtypes of much of the runs."""

    @cached_property
    def summary(self) -> Summary:
        """The summary of ``msprobe compare`` for the two."""
        return summarise(self.result)

    @cached_property
    def judgement(self) -> Judgement:
        """The judgement on each row."""
        return Judgement(self.result)

    @property
    def design(self) -> list[TypePair]:
        """The pairs of types that differ by design."""
        return sorted(pair for pair in self.types if pair[0] != pair[1])

    def difference(self, row: Row) -> float:
        """The relative difference of the two tensors of a row."""
        return distance(row)

    def sizes(self, judged: JudgedCall) -> tuple[float, float]:
        """The largest relative differences of inputs and of outputs, of the tensors that both sides have.

        NaN where only one side has any: a tensor that one side lacks has no difference.
        """
        return self._size(judged.inputs, judged, into=True), self._size(judged.outputs, judged, into=False)

    def is_nonfinite(self, judged: JudgedCall) -> bool:
        """True if a tensor of the call is finite on one side alone."""
        return math.isinf(max(judged.inputs, judged.outputs)) and any(map(self._is_infinite, judged.call.rows))

    def shown_item(self, found: Unexplained) -> ShownItem | None:
        """The item that shows a finding; ``None`` where the call itself is missing on one side."""
        names = found.record, found.golden_record
        suspects = ((each, each.suspect) for each in self.judged if each.suspect is not None)
        judged = next((each for each, suspect in suspects if (suspect.record, suspect.golden_record) == names), None)
        rows = [] if judged is None or not found.item else judged.call.rows
        row = next((row for row in rows if row.target is not None and row.target.name == found.item), None)
        if judged is None or row is None or row.target is None or row.golden is None:
            return None
        is_nonfinite = row.target.is_tensor and math.isinf(self.difference(row))
        return ShownItem(row, judged.parameter, goes_in(row), is_nonfinite)

    def _size(self, largest: float, judged: JudgedCall, into: bool) -> float:
        if not math.isinf(largest):
            return largest
        rows = [row for row in judged.call.rows if goes_in(row) is into]
        if any(map(self._is_infinite, rows)):
            return largest
        return max((self.difference(row) for row in rows if _is_tensor_of_both(row)), default=math.nan)

    def _is_infinite(self, row: Row) -> bool:
        """True if both sides have a tensor, and one alone is finite; one that a side lacks has no value to judge."""
        return _is_tensor_of_both(row) and math.isinf(self.difference(row))


def _is_tensor_of_both(row: Row) -> bool:
    target, golden = row.target, row.golden
    return target is not None and golden is not None and target.is_tensor and golden.is_tensor


def evidence_of(
    target: Dump,
    golden: Dump,
    options: Options,
    before: tuple[str, str] | None = None,
    *,
    release: bool = False,
    watch: ProgressCallback | None = None,
) -> Evidence:
    """Compare two dumps; the arguments are those of `compare_dumps`.

    Raises:
        MsprobeException: these two cannot be compared, and why.
    """
    comparison = Comparison(target, golden, options, before)
    return _evidence(options, compared(comparison, release=release, watch=watch, keeps_judged=True))


def _evidence(options: Options, found: ComparedDumps) -> Evidence:
    runs, judged = found.seen.runs, found.seen.judged
    if runs is None:
        return Evidence(options, found.result, found.calls, (), ())
    return Evidence(options, found.result, found.calls, runs.calls, judged, runs.precision.design)


Prepare = Callable[[Dump, Dump], Callable[[Evidence], T]]
"""Looks at two dumps before their records are released; what it returns makes something of the evidence."""


def summaries_and(
    prepare: Prepare[T],
    target: str,
    golden: str,
    output: str,
    options: Options,
    xlsx: bool = False,
    *,
    where: Where | None = None,
    tensor_log: bool = False,
    watch: ProgressCallback | None = None,
    left_out: Callable[[str], None] = log.error,
) -> Generator[tuple[Summary, T], None, None]:
    """Compare two files or folders as `summaries` does, and make something of the evidence of each pair besides.

    Args:
        prepare: a function that another process finds; it is called there.
        left_out: takes a sentence for each pair that cannot be compared.

    Raises:
        MsprobeException: the two cannot be compared; with several ranks, none can.
    """
    tasks = pair_tasks(locate(target, golden), output, options, xlsx, tensor_log)
    outcomes = run_pairs(where, partial(_summary_and, prepare), tasks, watch)
    with closing(readable(tasks, outcomes, target, golden, left_out)) as found:
        yield from found


def _summary_and(prepare: Prepare[T], task: PairTask, watch: ProgressCallback | None = None) -> tuple[Summary, T]:
    """Compare two dumps, write the table, and make what is wanted of the evidence."""
    dumps = read(task.pair.target), read(task.pair.golden)
    make = prepare(*dumps)
    evidence = _evidence(task.options, compare_pair(task, watch, dumps, keeps_judged=True))
    return evidence.summary, make(evidence)
