"""Inputs that differ by more than any recorded call gave them, and the call that is named for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from probe.common.align.row import Row
from probe.common.dump.naming import is_forward, is_module
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.numerics.error_bounds import ALTOGETHER, extent, rms, rounding
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.causes.reordering import MAY_BE_REORDERED, ROUNDED, has_same_elements, is_shown
from probe.compare.divergence.parameters import Parameter
from probe.compare.divergence.search.findings import unexplained_item
from probe.compare.divergence.search.items import rounds
from probe.compare.divergence.search.observed import Elsewhere
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.walk import Walk
from probe.compare.divergence.two_programs.scalar_gradients import ScalarGradients
from probe.compare.result import Mode, Unexplained


class FoundInput(NamedTuple):
    """An input that no recorded call gave."""

    suspect: Unexplained
    parameter: Optional[Parameter]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The parameter that it is, if it is one."""


class FoundParameter(NamedTuple):
    """A parameter of a module around a call."""

    suspect: Unexplained
    module: Optional[str]  # noqa: UP045
    """The record of that module."""


class UnrecordedInputs:
    """Finds inputs that differ by more than any recorded call gave them.

    Args:
        runs: the runs that are walked.
        walk: what is known so far; it is not changed.
    """

    def __init__(self, runs: Runs, walk: Walk) -> None:
        self._runs = runs
        self._walk = walk
        self._error = walk.error
        self._scalar_gradients = ScalarGradients(runs)

    def found(self, call: AlignedCall, row: Row, difference: float) -> FoundInput | None:
        """The finding on an input whose relative difference this is."""
        target, golden = row.target, row.golden
        if target is None or golden is None or not difference:
            return None
        if self._runs.regions is not None and differences.is_of_another_size(row):
            return None
        parameter = self._runs.parameter(call, row)
        of_one_side = self._walk.cancelled_around(call) if parameter is None else 0.0
        allowed = max(self._allowed(target, golden, parameter), self._of_casts(call), of_one_side)
        allowed *= _cancelling(call, row)
        if difference <= allowed or (self._error.broken and difference >= ALTOGETHER):
            return None
        if self._comes_from_output(target, golden):
            return None
        if parameter is None and difference <= allowed * self._scalar_gradients.terms_of(row):
            return None
        if parameter is None and self._is_kept_state(target, golden):
            return None
        if parameter is None:
            return FoundInput(self._of_input(call, row, difference, allowed), None)
        suspect = self._of_parameter(call, row, parameter, difference, allowed)
        return None if suspect is None else FoundInput(suspect, parameter)

    def parameter_around(self, call: AlignedCall, row: Row) -> FoundParameter | None:
        """The finding on a parameter of a module around `call`, which code that is not recorded may have used.

        Such a module is judged when it ends, after what its parameters changed.
        """
        if not is_forward(call.record or "") or self._runs.parameter(call, row) is not None:
            return None
        for name in around(self._runs.tree, call.record or ""):
            module = self._runs.by_record.get(name)
            suspect = None if module is None or not module.golden_record else self._parameter_in(module)
            if module is not None and suspect is not None:
                return FoundParameter(suspect, module.record)
        return None

    def _parameter_in(self, module: AlignedCall) -> Unexplained | None:
        for row in module.rows:
            if row.target is not None and row.target.state == PARAMETERS:
                found = self.found(module, row, self._error.difference(row))
                if found is not None:
                    return found.suspect
        return None

    def _allowed(self, target: Item, golden: Item, parameter: Parameter | None) -> float:
        if parameter is None:
            return self._runs.growth * self._error.allowed_of_unrecorded(target, golden)
        return rounding(1.0, self._error.roundoff(target, golden) or unit_roundoff("float32"))

    def _of_casts(self, call: AlignedCall) -> float:
        """The error of an input of a function that its module cast to a float8 dtype before, which is not recorded."""
        casts = self._runs.casts
        if not casts.coarsest or is_module(call.record or ""):
            return 0.0
        return rounding(1.0, casts.roundoff(call))

    def _comes_from_output(self, target: Item, golden: Item) -> bool:
        return self._error.was_output(target, golden) or self._error.is_multiple_of_output(target, golden)

    def _is_kept_state(self, target: Item, golden: Item) -> bool:
        """True of what an optimizer has kept since the step before, in which it was judged."""
        between = self._runs.between_steps
        return between is not None and between.are_kept(target, golden)

    def _of_input(self, call: AlignedCall, row: Row, difference: float, allowed: float) -> Unexplained:
        target, golden = row.target, row.golden
        assert target is not None and golden is not None
        around = self._named_for(call)
        reason = differences.of_input(row, difference, allowed, call.record if around is not call else None)
        cause = differences.of_batch(target, golden) if target.shape != golden.shape else ""
        cause = cause or differences.of_whole_numbers(target, golden)
        return unexplained_item(self._runs, around, row, reason, difference, allowed, cause)

    def _of_parameter(
        self, call: AlignedCall, row: Row, parameter: Parameter, difference: float, allowed: float
    ) -> Unexplained | None:
        """The finding on a parameter, which only the optimizer, or whoever set it, can have changed."""
        cause = reordered = ""
        between = self._runs.between_steps
        frozen = self._runs.parameters.side_without_gradient(parameter)
        if between is not None:
            if between.optimizer:
                cause = f"the optimizer step before this step diverges: {between.optimizer}"
            elif side := between.side_without_update(parameter):
                cause = f"the optimizer step before this step leaves {parameter.name} as it was in the {side}"
                cause += ", where it has no gradient (frozen or detached)" if frozen == side else ""
            elif frozen:
                cause = f"{parameter.full_name} has no gradient in the {frozen} (frozen or detached)"
            elif between.explains(parameter):
                return None
        if not cause and self._may_be_reordered(call, parameter, difference):
            reordered = f"parameter {parameter.full_name}"
            cause = f"{reordered} {MAY_BE_REORDERED}: its maximum, minimum, mean and norm agree"
        reason = differences.of_parameter(row, parameter.full_name, difference)
        found = unexplained_item(self._runs, call, row, reason, difference, allowed, cause)
        return replace(found, reordered=reordered)

    def _may_be_reordered(self, call: AlignedCall, parameter: Parameter, difference: float) -> bool:
        if not has_same_elements(parameter.target, parameter.golden):
            return False
        if self._runs.mode is Mode.TENSOR:
            return difference > ROUNDED  # It is that of the elements, which are looked at.
        return is_shown(parameter.target, call, self._runs.calls)

    # --- which call is named

    def _named_for(self, call: AlignedCall) -> AlignedCall:
        """The call to name for an input of unrecorded origin: at L0 the module whose own code made it."""
        if not self._runs.modules_only:
            return call
        found = call
        while True:
            record = self._runs.tree.get(found.record or "")
            golden = self._runs.golden_tree.get(found.golden_record or "")
            if not record or not golden:
                return found
            module = self._runs.by_record.get(record)
            found = AlignedCall(record, golden, call.rows)
            if module is None or module.golden_record != golden or not self._gets_what_differs(module):
                return found

    def _gets_what_differs(self, module: AlignedCall) -> bool:
        """True if a module was called with what no recorded call returned, so that the one around it made that."""
        for row in module.rows:
            target, golden = row.target, row.golden
            if target is None or golden is None or target.state != INPUT:
                continue
            if not rounds(row) or extent(target.shape).elements != extent(golden.shape).elements:
                continue
            is_large = self._error.difference(row) > self._error.allowed_of_unrecorded(target, golden)
            if is_large and not self._comes_from_output(target, golden):
                return True
        return False


def of_other_thing(
    runs: Runs, call: AlignedCall, found: Unexplained, elsewhere: Sequence[Elsewhere]
) -> Unexplained | None:
    """The finding on a call that takes another tensor than its counterpart; `found` is the one on what it returns.

    The other program has that tensor in another place, and gives the call something else: a sum, say, of which one
    program leaves a part out. If a program takes more tensors, such as a hidden state and a residual for their sum, the
    call may make the same of them.

    Args:
        runs: the runs.
        call: the call.
        found: the finding.
        elsewhere: the arguments that differ, and that the other program has in another place.
    """
    sides = [(row.target, row.golden) for row in call.rows if is_input(row)]
    is_one_sided = any((target is None) != (golden is None) for target, golden in sides if _is_tensor(target or golden))
    if len(elsewhere) != 1 or is_one_sided or runs.regions is None:
        return None
    row, difference = elsewhere[0]
    allowed = found.allowed or 0.0
    if difference <= allowed:
        return None
    reason = differences.of_input(row, difference, allowed, None)
    givers, cause = runs.regions.givers(row), ""
    if givers is not None:
        cause = f"{call.record} takes what {givers[0]} returned, and in the golden run what {givers[1]} returned"
    return unexplained_item(runs, call, row, reason, difference, allowed, cause)


def _is_tensor(item: Item | None) -> bool:
    return item is not None and item.is_tensor


def _cancelling(call: AlignedCall, row: Row) -> float:
    """The size of the numbers of which a running mean is the mean, relative to it; at least 1. Their errors stay in it.

    A running variance has nothing negative, and nothing that cancels.
    """
    golden = row.golden
    if golden is None or type(golden.min) is not float or golden.min >= 0.0:
        return 1.0
    if not differences.is_running_statistic(row):
        return 1.0
    averaged = next((each.golden for each in call.rows if is_input(each) and each.golden is not None), None)
    size = rms(golden)
    return max(1.0, rms(averaged) / size) if averaged is not None and size else 1.0
