"""Differences in the items of a call besides their numbers."""

from __future__ import annotations

from probe.common.align.row import Row
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.differences import Differences
from probe.compare.divergence.search.findings import difference_in
from probe.compare.divergence.search.observed import Observed
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.walk import Walk


class Kinds:
    """Notes what differs in an item beside its numbers.

    Args:
        runs: the runs that are walked.
        walk: what is known so far; it is not changed.
        differences: says it in words.
    """

    def __init__(self, runs: Runs, walk: Walk, differences: Differences) -> None:
        self._precision = runs.precision
        self._are_programs = runs.regions is not None
        self._walk = walk
        self._differences = differences

    def note(self, call: AlignedCall, row: Row, observed: Observed) -> bool:
        """Add to `observed` what differs in kind; returns whether the numbers cannot be compared then."""
        reason = self._differences.in_kind(row)
        if reason:
            observed.differences.append(difference_in(call, row, reason))
            return self._is_other_value(row, observed)
        if differences.is_absent_on_one_side(row):
            return True
        if self._are_programs and differences.is_of_another_size(row):
            # It is another thing, or one that was emptied or padded, of which nothing is known.
            return True
        self._note_gradient(call, row, observed)
        return False

    def _is_other_value(self, row: Row, observed: Observed) -> bool:
        """True if values of a type or shape cannot be compared; then nobody is certain of the call either."""
        target, golden = row.target, row.golden
        has_one_shape = target is not None and golden is not None and target.shape == golden.shape
        types = [None if item is None else item.dtype for item in (target, golden)]
        if has_one_shape and self._precision.is_loss(*types):
            return False
        observed.certain = False
        return True

    def _note_gradient(self, call: AlignedCall, row: Row, observed: Observed) -> None:
        if self._walk.gradient is not None or observed.gradient is not None:
            return
        reason = self._differences.in_gradient(row)
        if reason:
            # It changes no value of this call, so that it is not its cause.
            observed.gradient = difference_in(call, row, reason)
