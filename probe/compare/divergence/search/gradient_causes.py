"""Causes of gradients that diverge: a gradient that one side does not take, tied weights, one factor over all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

from probe.common.align.row import Row
from probe.common.dump.naming import PARAMETERS_GRAD, is_backward
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import gradient_on_one_side
from probe.compare.divergence.search.findings import difference_in
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.walk import Walk
from probe.compare.divergence.two_programs.scaling import one_factor
from probe.compare.result import Difference, Unexplained
from probe.compare.sentences import NOTHING, Sentence

_SAME_FACTOR = 1e-3
"""The relative difference of the factors of two gradients that are scaled together."""
_OTHER_FACTOR = 0.01
"""The least distance of a factor from 1."""


class GradientCauses:
    """Finds what made a gradient diverge.

    Args:
        runs: the runs that are walked.
        walk: what is known so far; it is not changed.
    """

    def __init__(self, runs: Runs, walk: Walk) -> None:
        self._runs = runs
        self._walk = walk

    def of_one_side(self, call: AlignedCall) -> Sentence:
        """The sentence on a tensor that takes a gradient on one side only, with a backward missing behind it."""
        if not _is_of_gradient(call) or not self._is_backward_missing:
            return NOTHING
        noted = self._walk.gradient or self._first_in_other_program
        if noted is None:
            return NOTHING
        around = self._runs.by_record.get(noted.record)
        row = next((row for row in around.rows if differences.item_name(row) == noted.item), None) if around else None
        side = "golden run" if row is not None and row.target is not None and row.target.requires_grad else "target"
        is_parameter = around is not None and row is not None and self._runs.parameter(around, row) is not None
        why = (
            f"the {side} has frozen this parameter (requires_grad)"
            if is_parameter
            else f"the {side} detaches it (detach, no_grad)"
        )
        return Sentence(f"{noted.reason}: {why}").inside(noted.record)

    @cached_property
    def _first_in_other_program(self) -> Difference | None:
        """The first tensor of two programs of one framework that takes a gradient on one side only."""
        for call in () if self._runs.same_names or self._runs.across_frameworks else self._runs.calls:
            for row in call.rows:
                if row.target is not None and row.golden is not None and gradient_on_one_side(row.target, row.golden):
                    return difference_in(call, row, differences.of_gradient(row, row.target))
        return None

    @cached_property
    def _is_backward_missing(self) -> bool:
        """True if one side alone has a gradient somewhere."""
        return any(
            _is_of_gradient(call) and (call.record is None or call.golden_record is None) for call in self._runs.made
        )

    def of_tied(self, call: AlignedCall, suspect: Unexplained) -> str:
        """The sentence on two parameters with the same values that are one parameter on one side."""
        if PARAMETERS_GRAD not in (call.record or ""):
            return ""
        own = next((row for row in call.rows if differences.item_name(row) == suspect.item), None)
        if own is None or own.target is None or own.golden is None:
            return ""
        parameters = self._runs.parameters
        mine = parameters.of_gradient(own.target)
        for other in parameters.all if mine is not None else ():
            if mine is None or other.full_name == mine.full_name or not _has_values_of(other.target, mine.target):
                continue
            if not _has_values_of(other.golden, mine.golden):
                continue
            tied = [
                gradient is None or _has_values_of(gradient, item)
                for gradient, item in zip(parameters.gradients_of(other), (own.target, own.golden))
            ]
            if tied[0] != tied[1]:
                sides = ("target", "golden run") if tied[0] else ("golden run", "target")
                names = f"{mine.full_name} and {other.full_name}"
                return f"{names} are one parameter in the {sides[0]} (tied weights) and two in the {sides[1]}"
        return ""

    def of_scale(self, call: AlignedCall, suspect: Unexplained) -> str:
        """The sentence on gradients that differ by one factor."""
        if not _is_of_gradient(call):
            return ""
        own = next((row for row in call.rows if differences.item_name(row) == suspect.item), None)
        factor = None if own is None else _factor(own)
        if own is None or factor is None or abs(factor - 1.0) < _OTHER_FACTOR:
            return ""
        of_parameters = list(self._factors_of_parameters())
        if not of_parameters or any(not math.isclose(each, factor, rel_tol=_SAME_FACTOR) for each in of_parameters):
            return ""
        text = f"all gradients of parameters are {factor:.6g} times those of the golden run"
        number = _number_of_terms(own, factor) if is_backward(call.record or "") else 0
        if number:
            sides = ("target", "golden run") if factor > 1.0 else ("golden run", "target")
            return (
                f"{text}: probably the {sides[0]} sums the loss over {number} terms, and the {sides[1]} takes the mean"
            )
        return f"{text}: the loss is scaled, or summed instead of averaged, or gradients are clipped"

    def _factors_of_parameters(self) -> Iterator[float]:
        for call in self._runs.calls:
            if call.record and call.golden_record and PARAMETERS_GRAD in call.record:
                for row in call.rows:
                    found = _factor(row)
                    if found is not None:
                        yield found


def _is_of_gradient(call: AlignedCall) -> bool:
    name = call.record or call.golden_record or ""
    return is_backward(name) or PARAMETERS_GRAD in name


def _factor(row: Row) -> float | None:
    """The factor between two tensors, as `one_factor` has it; ``None`` of a tensor on one side."""
    if row.target is None or row.golden is None:
        return None
    return one_factor(row.target, row.golden, _SAME_FACTOR)


def _number_of_terms(row: Row, factor: float) -> int:
    """The number of elements, or of rows, of a gradient that is the factor; 0 if neither is."""
    item = row.golden
    elements = 0 if item is None else extent(item.shape).elements or 0
    width = item.shape[-1] if item is not None and item.shape else 1
    size = max(factor, 1.0 / factor)
    for number in (elements, elements // width if width else 0):
        if number > 1 and math.isclose(size, number, rel_tol=_SAME_FACTOR):
            return number
    return 0


def _has_values_of(one: Item, other: Item) -> bool:
    if one.shape != other.shape or one.max == one.min:
        return False
    return (one.max, one.min, one.mean, one.norm, one.md5) == (other.max, other.min, other.mean, other.norm, other.md5)
