"""The inputs of a call, parameters included, and their differences from the golden side."""

from __future__ import annotations

from probe.common.align.row import Row
from probe.common.dump.reading.records import INPUT
from probe.common.numerics.error_bounds import Terms, relative_difference, rounding
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.search.items import overwrites
from probe.compare.divergence.search.kinds import Kinds
from probe.compare.divergence.search.observed import Elsewhere, Observed
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.unrecorded import FoundInput, UnrecordedInputs
from probe.compare.divergence.search.walk import Walk
from probe.compare.result import Mode

# Running statistics carry what rounding did in all steps before.
_OF_KEPT_STATE = 1e-3


class Inputs:
    """Judges the inputs and parameters of a call.

    Args:
        runs: the runs that are walked.
        walk: what is known so far; it is not changed.
        kinds: notes what differs beside numbers.
    """

    def __init__(self, runs: Runs, walk: Walk, kinds: Kinds) -> None:
        self._runs = runs
        self._error = walk.error
        self._kinds = kinds
        self._unrecorded = UnrecordedInputs(runs, walk)

    def explain(self, call: AlignedCall, row: Row, terms: Terms, observed: Observed) -> None:
        """Add an item to the terms that outputs are computed from, and to `observed` what nothing explains."""
        is_other_kind = self._kinds.note(call, row, observed)
        has_no_difference = is_other_kind or self._is_other_order(call, row)
        difference = 0.0 if has_no_difference else self._error.difference(row)
        if difference and self._runs.regions is not None:
            elsewhere = self._runs.regions.of_other_thing(row)
            if elsewhere is not None and elsewhere < difference:
                observed.elsewhere.append(Elsewhere(row, difference))
                difference = elsewhere
        self._add_to(terms, call, row, difference)
        found = None if is_other_kind else self._unrecorded.found(call, row, difference)
        if found is not None:
            self._accuse(call, row, found, difference, observed)

    def _add_to(self, terms: Terms, call: AlignedCall, row: Row, difference: float) -> None:
        target, golden = row.target, row.golden
        if golden is None:
            return
        add = terms.add if golden.state == INPUT else terms.add_operand
        if target is not None and self._runs.precision.is_loss(target.dtype, golden.dtype):
            # Where precision was lost in this place, what was expected is what the finer type holds.
            add(min((target, golden), key=lambda item: unit_roundoff(item.dtype) or 1.0), 0.0)
        else:
            add(golden, max(difference, self._hidden(call, row)))

    def _hidden(self, call: AlignedCall, row: Row) -> float:
        """The difference that a parameter may have without a trace in its statistics: single elements differ."""
        between = self._runs.between_steps if self._runs.across_frameworks else None
        parameter = None if between is None else self._runs.parameter(call, row)
        return 0.0 if between is None or parameter is None else between.hidden(parameter)

    def _is_other_order(self, call: AlignedCall, row: Row) -> bool:
        """True if a parameter of another program may have the same elements in another order, such as transposed.

        What the call returns tells whether it takes them in that order.
        """
        target, golden = row.target, row.golden
        if self._runs.same_names or self._runs.mode is not Mode.TENSOR or target is None or golden is None:
            return False
        roundoff = self._error.roundoff(target, golden) or unit_roundoff("float32")
        same = self._runs.parameter(call, row) is not None and target.value is golden.value is None
        return same and relative_difference(target, golden) <= rounding(1.0, roundoff)

    def _accuse(self, call: AlignedCall, row: Row, found: FoundInput, difference: float, observed: Observed) -> None:
        """Add to `observed` an input that no recorded call gave."""
        target, golden, parameter = row.target, row.golden, found.parameter
        assert target is not None and golden is not None
        if parameter is None and not self._runs.precision.is_loss(target.dtype, golden.dtype):
            observed.certain = False
        if overwrites(call, row):
            return
        origin = self._unrecorded.parameter_around(call, row)
        if origin is not None:
            observed.modules_named.append(origin.module)
            if observed.suspect is None:
                observed.of_parameter, observed.suspect = True, origin.suspect
        if difference > _OF_KEPT_STATE and differences.is_running_statistic(row):
            observed.of_own_values = True
        if parameter is not None:
            observed.of_parameter = True
            observed.parameter = observed.parameter if observed.suspect is not None else parameter.name
        observed.accuse(found.suspect)
