"""The outputs of a call: differences that its inputs, its types and the calls before it explain, and others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.common.align.row import Row
from probe.common.dump.naming import PARAMETERS_GRAD, is_module, parse
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import (
    ALTOGETHER,
    CONFIDENCE,
    GRADIENT,
    Terms,
    approximation,
    condition,
    condition_of_product,
    explained,
    extent,
    rounding,
    turned_by_division,
)
from probe.common.operations.function import DOT_PRODUCT, Trait
from probe.common.operations.lookup import function, has
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.peers.short_sums import error_of_partial_sums
from probe.compare.divergence.search.findings import reason_of, unexplained_item
from probe.compare.divergence.search.items import is_of_one_shape, last_word, rounds
from probe.compare.divergence.search.kinds import Kinds
from probe.compare.divergence.search.observed import Elsewhere, JudgedOutput, Observed
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.walk import Walk
from probe.compare.result import Unexplained

# A gradient that passes what values turned on or off differs by the root of the share of these, twice to be sure.
_OF_TURNED = 2.0


@dataclass(frozen=True)
class Computation:
    """The inputs from which the outputs of a call are computed."""

    call: AlignedCall
    function: str
    """The name under which `condition` knows the function."""
    terms: Terms


class Outputs:
    """Judges the outputs of a call.

    Args:
        runs: the runs that are walked.
        walk: what is known so far. One thing is added to it: that outputs have other shapes because values differ.
        kinds: notes what differs beside numbers.
    """

    def __init__(self, runs: Runs, walk: Walk, kinds: Kinds) -> None:
        self._runs = runs
        self._walk = walk
        self._error = walk.error
        self._kinds = kinds

    def explain(self, computed: Computation, row: Row, observed: Observed) -> None:
        """Add an output to `observed`, and that nothing explains it where nothing does."""
        target, golden = row.target, row.golden
        is_turned = self._is_turned(computed.terms, row)
        if is_turned and self._has_other_shape(row):
            # At once: the other outputs of this call have other shapes for the same reason.
            self._walk.add_reshaped()
        if self._kinds.note(computed.call, row, observed) or target is None or golden is None:
            self._note_other_size(computed, row, observed)
            return
        output = self._judged(computed, row, target, golden, is_turned)
        observed.outputs.append(output)
        if output.difference > output.allowed and observed.suspect is None:
            observed.suspect = self._suspect(computed, output, observed.elsewhere)

    def _suspect(self, computed: Computation, output: JudgedOutput, given: Sequence[Elsewhere]) -> Unexplained:
        found, allowed, leaving = output.difference, output.allowed, output.leaving
        if leaving is None:
            reason = differences.of_output(output.row, found, output.of_inputs, allowed)
        else:
            found, allowed = leaving.error, leaving.allowed
            reason = differences.of_leaving(output.row, found, allowed, leaving.peers)
        of_inputs = output.of_inputs
        elsewhere = max(given, key=lambda each: each.difference, default=None)
        # What is not finite is told of the output, whatever the call takes.
        if elsewhere is not None and elsewhere.difference > max(of_inputs, allowed) and not math.isinf(found):
            of_inputs = elsewhere.difference
            giver = "" if self._runs.regions is None else self._runs.regions.golden_giver(elsewhere.row)
            reason = differences.of_other_input(elsewhere.row, of_inputs, giver, output.row, found)
        suspect = unexplained_item(self._runs, computed.call, output.row, reason, found, allowed)
        return replace(suspect, of_inputs=of_inputs if of_inputs < ALTOGETHER else None)

    def _has_other_shape(self, row: Row) -> bool:
        """True if both sides have another number of results; two programs may have as many in another shape."""
        if self._runs.regions is not None:
            return differences.is_of_another_size(row)
        return not is_of_one_shape(row)

    def _is_turned(self, terms: Terms, row: Row) -> bool:
        """True if an item is of whole numbers that values which differ may have turned into others.

        Any difference can turn one whole number into another, and a turned one may have the same statistics.
        """
        return bool(terms.error or self._error.largest or self._error.broken) and not rounds(row)

    def _judged(self, computed: Computation, row: Row, target: Item, golden: Item, is_turned: bool) -> JudgedOutput:
        difference = self._error.difference(row)
        factor = self._factor(computed, target, golden)
        terms = computed.terms
        of_inputs = max(terms.error, self._error.inside(computed.call))
        of_kernel = _of_partial_sums(computed, target, golden)
        if math.isinf(difference):
            # Only NaN and infinities give NaN.
            allowed = math.inf if math.isinf(of_inputs) else 0.0
        elif is_turned:
            allowed = math.inf
        else:
            largest = self._runs.growth * max(of_inputs, self._error.largest)
            allowed = max(
                math.hypot(
                    explained(largest, factor, self._rounding(computed, target, golden)),
                    CONFIDENCE * of_kernel,
                ),
                self._turned_off(computed.function) * factor,
            )
            error = max(largest, terms.roundoff)
            if allowed < difference <= _turned_by_division(computed, golden, error):
                allowed = difference
                # Few elements differ, so that it says nothing of what is computed from others.
                factor = max(factor, difference / error)
        leaving = (
            self._runs.peers.leaving.get(id(row)) if difference <= allowed and not math.isinf(difference) else None
        )
        if leaving is not None:
            allowed = difference * leaving.allowed / leaving.error
        return JudgedOutput(row, target, golden, difference, terms.error, allowed, factor, leaving, of_kernel)

    def _factor(self, computed: Computation, target: Item, golden: Item) -> float:
        """By how much the call may increase the relative difference of its inputs."""
        factor = condition(computed.function, computed.terms, target, golden)
        if not self._runs.across_frameworks and not self._runs.peers.are_asked:
            return factor
        # Two frameworks sum in other orders, and two precisions round other terms, so that what cancels is rounded
        # otherwise. Peers show how much of it happens.
        of_parameter = PARAMETERS_GRAD in (computed.call.record or "")
        if not self._runs.across_frameworks and extent(golden.shape).elements < computed.terms.count:
            # The gradient of a weight or a bias among those that a function's backward returns.
            of_parameter = True
        return max(factor, condition_of_product(computed.function, computed.terms, target, golden, of_parameter))

    def _rounding(self, computed: Computation, target: Item, golden: Item) -> float:
        """The error that the call itself adds to the relative difference of its inputs."""
        terms = computed.terms
        roundoff = max(terms.roundoff, self._error.roundoff(target, golden))
        if self._runs.product_roundoff and _may_be_product(computed):
            roundoff = max(roundoff, self._runs.product_roundoff)
        if self._runs.casts.coarsest and _may_be_product(computed):
            roundoff = max(roundoff, self._runs.casts.roundoff(computed.call))
        added = rounding(terms.summed(golden), roundoff)
        if not self._runs.across_frameworks:
            return added
        return max(added, approximation(last_word(computed.call.golden_record or "")))

    def _turned_off(self, function: str) -> float:
        """The error that elements which a relu turned on or off on one side add to a gradient.

        What values differ by turns that share of the elements, and the gradient through each with it: its norm differs
        by the root of that.
        """
        hidden = self._error.hidden
        return _OF_TURNED * math.sqrt(hidden) if function == GRADIENT and hidden else 0.0

    def _note_other_size(self, computed: Computation, row: Row, observed: Observed) -> None:
        """Add that a call returns another number of values for the same inputs, in the same program."""
        if observed.suspect is None and self._has_other_size(computed, row):
            # What was noted of it last is the finding itself and not its cause.
            reason = reason_of(observed.differences.pop())
            observed.suspect = unexplained_item(self._runs, computed.call, row, reason, ALTOGETHER, 0.0)

    def _has_other_size(self, computed: Computation, row: Row) -> bool:
        target, golden, error = row.target, row.golden, self._error
        if not self._runs.same_names or target is None or golden is None or not rounds(row):
            return False
        if computed.terms.error or error.largest or error.broken or error.reshaped or target.dtype != golden.dtype:
            return False
        differs = extent(target.shape).elements != extent(golden.shape).elements
        return differs and all(is_of_one_shape(each) for each in computed.call.rows if is_input(each))


def _may_be_product(computed: Computation) -> bool:
    """True if a call is a matrix product, or may have one inside: a module, the backward of a function."""
    if computed.function == GRADIENT or is_module(computed.call.record or ""):
        return True
    return has(computed.function, Trait.MASKED) or function(computed.function).rounding == DOT_PRODUCT


def _of_partial_sums(computed: Computation, target: Item, golden: Item) -> float:
    """The error of a gradient that a kernel may sum in its own short type, with what cancels in it."""
    parsed, terms = parse(computed.call.record or ""), computed.terms
    if parsed is None or computed.function != GRADIENT:
        return 0.0
    return error_of_partial_sums(parsed, target, golden, terms.count, terms.scale, rows_vary=False)


def _turned_by_division(computed: Computation, result: Item, error: float) -> float:
    """The difference that a quotient may have where elements are nothing but rounding, as with Adam."""
    rows = (row for row in computed.call.rows if is_input(row))
    given = [row.golden for row in rows if row.golden is not None and row.golden.is_tensor]
    return turned_by_division(computed.function, given, result, error)
