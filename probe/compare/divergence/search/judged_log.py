"""A log of what the search found of each pair of calls, for who shows them all."""

from __future__ import annotations

from collections.abc import Sequence

from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.judged_calls import EXPLAINED, SAME, STRUCTURE, UNEXPLAINED, JudgedCall
from probe.compare.divergence.search.observed import Observed
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.walk import Walk
from probe.compare.result import Difference, Mode, Unexplained


class JudgedLog:
    """Keeps what was found of each pair of calls, where `Runs` ask for it; it has no say in what is found.

    Args:
        runs: the runs that are walked.
        walk: what is known so far; it is not changed.
    """

    def __init__(self, runs: Runs, walk: Walk) -> None:
        self._runs = runs
        self._error = walk.error
        self.calls: list[JudgedCall] = []
        """The calls that were kept, in the order of the walk."""

    def add_same(self, call: AlignedCall) -> None:
        """Keep that nothing differs in a call."""
        if self._runs.keeps_judged:
            self.calls.append(JudgedCall(call, SAME, 0.0, 0.0, ""))

    def add_explained(self, call: AlignedCall, before: float) -> None:
        """Keep that a call differs by no more than calls before it, whose relative difference is `before`."""
        if self._runs.keeps_judged:
            self._add(call, EXPLAINED, "", before)

    def add_moved(self, call: AlignedCall) -> None:
        """Keep that a call is the backward of one that differs without effect, and differs as it does."""
        if self._runs.keeps_judged:
            self._add(call, STRUCTURE, "the forward call differs without effect, and its backward as it does")

    def add_crossed(self, call: AlignedCall) -> None:
        """Keep that two calls hand on results of calls that are no pair."""
        if self._runs.keeps_judged:
            self._add(call, STRUCTURE, "both calls hand on a result, and these two results have other counterparts")

    def add_judged(
        self, call: AlignedCall, observed: Observed, found: Unexplained | None, without_effect: Sequence[Difference]
    ) -> None:
        """Keep a judgement and what it came to."""
        if self._runs.keeps_judged:
            outcome, reason = _outcome(observed, found, without_effect)
            self._add(call, outcome, reason, suspect=found, parameter=observed.parameter)

    def _add(
        self,
        call: AlignedCall,
        outcome: int,
        reason: str,
        before: float | None = None,
        suspect: Unexplained | None = None,
        parameter: str = "",
    ) -> None:
        inputs, outputs = self._largest_differences(call)
        if outcome == EXPLAINED and not reason:
            if not inputs and not outputs:
                outcome = SAME
            else:
                reason = differences.of_explained(inputs, outputs, before)
        self.calls.append(JudgedCall(call, outcome, inputs, outputs, reason, suspect, parameter))

    def _largest_differences(self, call: AlignedCall) -> tuple[float, float]:
        """The largest relative difference of an input or parameter, and of an output."""
        inputs = outputs = 0.0
        # Otherwise what was measured stands.
        is_other = self._runs.across_frameworks or self._error.reshaped
        for row in call.rows:
            if row.target is row.golden and self._runs.mode is not Mode.TENSOR:
                continue
            known = row.relative_difference
            difference = self._error.difference(row) if known is None or is_other else known
            if difference <= inputs and difference <= outputs:
                continue
            if is_input(row):
                inputs = max(inputs, difference)
            else:
                outputs = max(outputs, difference)
        return inputs, outputs


def _outcome(observed: Observed, found: Unexplained | None, without_effect: Sequence[Difference]) -> tuple[int, str]:
    """The result of a judgement, and the rule with its numbers."""
    if found is not None:
        return UNEXPLAINED, found.shown_reason
    in_kind = [*observed.differences, *without_effect]
    if observed.suspect is not None:
        reason = f"{observed.suspect.shown_reason}; what is computed from it is the same"
        # Nothing explains it, though it is without effect.
        return STRUCTURE, "; ".join([*(each.shown_reason for each in observed.differences[:1]), reason])
    if in_kind:
        return STRUCTURE, f"{in_kind[0].shown_reason}; no value differs by more than is explained"
    largest = observed.largest
    if largest is None or not largest.difference:
        return EXPLAINED, ""
    return EXPLAINED, differences.of_output(largest.row, largest.difference, largest.of_inputs, largest.allowed).shown
