"""The state of a walk over the calls of two runs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from probe.common.dump.naming import BACKWARD, FORWARD, function_name, is_backward, is_forward, is_module, parse
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import ALTOGETHER, rms, rounding
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import CallDigest, is_input
from probe.compare.divergence.peers.leaving import DECIDED
from probe.compare.divergence.peers.random_error import random_error
from probe.compare.divergence.peers.short_sums import is_known_to_round
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
        self._trees = runs.tree, runs.golden_tree
        self._cancelled: dict[str, float] = {}
        """The error that calls of one side alone make inside each module because their terms cancel."""
        self._shown = 0.0
        """The largest relative difference of what a forward call returned."""

    # --- what a call adds

    def pass_one_sided(self, call: AlignedCall) -> None:
        """Go by a call that one side alone made."""
        # Another release may make other calls for the same thing; the values after it show whether it matters.
        if self._runs.same_names:
            self.missing = self.missing or call
        side = int(call.record is None)
        name, tree = (call.record, call.golden_record)[side] or "", self._trees[side]
        module = tree.get(name) if is_backward(name) else None
        if module:
            self._cancelled[module] = max(self._cancelled.get(module, 0.0), self._cancelled_in(call, name, side))

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
            is_large = output.allowed >= DECIDED and unjudged and id(output.row) in unjudged
            if is_large or _is_noise(output):
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

    def cancelled_around(self, call: AlignedCall) -> float:
        """The largest error that cancelling terms make in the modules around a call, where one side alone has them.

        The other side may round these terms otherwise, in one kernel for attention, say.
        """
        sides = zip((call.record, call.golden_record), self._trees) if self._cancelled else ()
        modules = (module for name, tree in sides for module in around(tree, name or ""))
        return max((self._cancelled.get(module, 0.0) for module in modules), default=0.0)

    def _cancelled_in(self, call: AlignedCall, name: str, side: int) -> float:
        """The relative error of the gradient of a softmax, which is the small difference of two products with it."""
        parsed = parse(name)
        if parsed is None or not has(parsed.base.rpartition(".")[2], Trait.EXPONENTIAL):
            return 0.0
        forward = in_direction(parsed, FORWARD)
        probabilities = self._returned_on_one_side.get((forward, side))
        items = [(row.target, row.golden)[side] for row in call.rows if not is_input(row)]
        gradients = [(row.target, row.golden)[side] for row in call.rows if is_input(row)]
        result, gradient = (next(filter(None, each), None) for each in (items, gradients))
        if probabilities is None or result is None or gradient is None or not rms(result):
            return 0.0
        condition = rms(probabilities) * rms(gradient) / rms(result)
        return rounding(1.0, unit_roundoff(result.dtype)) * max(1.0, condition)

    @cached_property
    def _returned_on_one_side(self) -> dict[tuple[str, int], Item]:
        """The first tensors that functions of one side alone return which have exponentials in them."""
        found: dict[tuple[str, int], Item] = {}
        for call in self._runs.calls:
            if call.record and call.golden_record:
                continue
            side = int(call.record is None)
            name = (call.record, call.golden_record)[side] or ""
            if is_forward(name) and not is_module(name) and has(function_name(name), Trait.EXPONENTIAL):
                items = ((row.target, row.golden)[side] for row in call.rows if not is_input(row))
                item = next(filter(None, items), None)
                if item is not None:
                    found[name, side] = item
        return found

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


def _is_noise(output: JudgedOutput) -> bool:
    """True if the rounding of its kernel explains a gradient, and makes errors of half its norm or more.

    In bfloat16, `layer_norm` of PyTorch on a CPU makes errors of 60 to 100 % of the gradients of its parameters over
    4,096 and 8,192 rows, so that a gradient of zeros is explained as well.
    """
    if output.of_kernel < DECIDED or output.difference > output.allowed:
        return False
    parsed = parse(output.row.record)
    if parsed is None or not is_known_to_round(parsed):
        return False
    return (random_error(output.target, output.golden) or 0.0) >= DECIDED
