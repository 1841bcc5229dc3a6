"""The state of a walk over the calls of two runs."""

from __future__ import annotations

from collections.abc import Iterable

from probe.common.dump.naming import BACKWARD, FORWARD, is_forward, parse
from probe.common.numerics.error_bounds import ALTOGETHER
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import CallDigest
from probe.compare.divergence.peers.groups import DECIDED
from probe.compare.divergence.propagated_error import PropagatedError
from probe.compare.divergence.search.items import in_direction
from probe.compare.divergence.search.observed import JudgedOutput, Observed
from probe.compare.divergence.search.runs import Runs
from probe.compare.result import Difference


class Walk:
    """The facts after the calls so far. Each method that changes them describes the addition of a call.

    Args:
        runs: the runs that are walked.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.error = PropagatedError(runs.mode, runs.tree, runs.precision, runs.across_frameworks)
        """The extent to which values differ so far."""
        self.has_diverged = False
        self.gradient: Difference | None = None
        """The first tensor that takes a gradient on one side only, as many after it then do."""
        self.missing: AlignedCall | None = None
        """A call that one side did not make, right before the next one."""
        self.with_effect: list[Difference] = []
        self.without_effect: list[Difference] = []
        self.undecided: list[Difference] = []
        """Differences between two programs of which nothing shows that they come to the same."""
        self.unjudged: list[JudgedOutput] = []
        """Outputs that may differ by as much as those of a fault and be explained, in this order."""
        self._moved: set[str | None] = set()
        """Records that differ without effect, whose backward differs as they do."""
        self._of_parameters: set[str | None] = set()
        """Modules with a parameter that differed before they ended."""
        self._shown = 0.0
        """The largest relative difference of what a forward call returned."""

    # --- what a call adds

    def pass_one_sided(self, call: AlignedCall) -> None:
        """Go by a call that one side alone made."""
        # Another release may make other calls for the same thing; the values after it show whether it matters.
        if self._runs.same_names:
            self.missing = self.missing or call

    def enter(self, call: AlignedCall, digest: CallDigest) -> None:
        """Count in what is known of a call before its values are looked at."""
        self.error.hidden = self._hidden_in(call)
        self.error.add_types(digest)

    def leave(self) -> None:
        """End with a call that both sides made."""
        self.missing = None

    def add_explained(self, call: AlignedCall, digest: CallDigest) -> None:
        """Count in a call that differs by no more than calls before it."""
        self.error.add_outputs(call, digest)
        self._add_shown(call, digest.output_difference)

    def add_seen(self, call: AlignedCall, observed: Observed) -> None:
        """Count in what holds of a call that was judged, whatever the judgement comes to."""
        unjudged = self._runs.peers.unjudged
        for output in observed.outputs:
            self._add_shown(call, output.difference)
            if unjudged and id(output.row) in unjudged and output.allowed >= DECIDED:
                self.unjudged.append(output)
        self._of_parameters.update(observed.modules_named)
        self.gradient = self.gradient or observed.gradient

    def add_moved(self, call: AlignedCall, outputs: Iterable[JudgedOutput]) -> None:
        """Count in a call that differs without effect."""
        self._moved.add(call.record)
        for output in outputs:
            self.error.add_without_effect(output.target, output.golden)

    def add_outputs(self, call: AlignedCall, outputs: Iterable[JudgedOutput]) -> None:
        """Count in what a call returned, which calls behind it may carry on."""
        for output in outputs:
            self.error.add_output(call, output.target, output.golden, output.difference, output.factor)

    def add_reshaped(self) -> None:
        """Count in that the number of results of a call depends on values that differ."""
        self.error.reshaped = True

    def _add_shown(self, call: AlignedCall, difference: float) -> None:
        if self._shown < difference < ALTOGETHER and is_forward(call.record or ""):
            self._shown = difference

    # --- what is asked

    def _hidden_in(self, call: AlignedCall) -> float:
        """The difference that the values of a call may have without showing it.

        When gradients come, the values of the whole forward pass have shown it.
        """
        usually = self._runs.hidden_usually
        if not usually:
            return 0.0
        return usually if is_forward(call.record or "") else min(usually, self._shown)

    def is_backward_of_moved(self, call: AlignedCall) -> bool:
        """True if it is the backward of a call that differs without effect."""
        parsed = parse(call.record or "") if self._moved else None
        return parsed is not None and parsed.direction == BACKWARD and in_direction(parsed, FORWARD) in self._moved

    def is_below_any_bound(self, call: AlignedCall, digest: CallDigest) -> bool:
        """True if no item differs by more than a call before, which every bound allows whatever the call is."""
        return digest.comparable and digest.difference <= self.error.largest and call.record not in self._of_parameters
