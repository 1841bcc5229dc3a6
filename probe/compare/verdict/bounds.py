"""The distance that a call explains: how far its outputs may be apart, given how far apart its inputs are, by its type.

The relative error of a result is at most the condition of the operation times that of the inputs, and what rounding
adds (see `probe.common.numerics.error_bounds`). The distances of inputs are measured, so that nothing is propagated
from call to call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from probe.common.align.row import Row
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD
from probe.common.dump.reading.records import INPUT
from probe.common.numerics.error_bounds import (
    CONFIDENCE,
    GRADIENT,
    Terms,
    approximation,
    condition,
    condition_of_product,
    explained,
    extent,
    relative_difference,
    rounding,
)
from probe.compare.verdict.facts import UNRELATED, Call, distance, is_parameter
from probe.compare.verdict.partial_sums import error_of_partial_sums
from probe.compare.verdict.two_runs import TwoRuns


class Given(NamedTuple):
    """The values that a call computes its results from."""

    function: str
    """The name under which the condition of the operation is known; `GRADIENT` of a backward, empty of a module."""
    terms: Terms
    rows: Sequence[Row]
    """The inputs; of a backward those of its forward, too."""

    @property
    def distance(self) -> float:
        """The largest distance of anything that goes in."""
        return self.terms.error


def given(runs: TwoRuns, call: Call, only: list[Row] | None = None) -> Given:
    """Find what a call computes its results from: a backward and the gradients of parameters have more than their own.

    Args:
        runs: the runs.
        call: the call.
        only: those of its inputs that count; all if ``None``.
    """
    terms = Terms()
    rows: Sequence[Row] = call.inputs if only is None else only
    for row in rows:
        _add(runs, terms, row)
    if call.is_forward:
        return Given("" if call.is_module else call.function, terms, rows)
    backward = runs.in_direction(call, BACKWARD) if call.direction == PARAMETERS_GRAD else None
    for row in () if backward is None else backward.inputs:
        _add(runs, terms, row)
        rows = [*rows, row]
    forward = runs.in_direction(call, FORWARD)
    kept = () if forward is None else forward.inputs
    for row in kept:
        item = runs.precision.expected(row)
        if item is not None:
            terms.add_kept(item, distance(row))
    return Given(GRADIENT, terms, [*rows, *kept])


def _add(runs: TwoRuns, terms: Terms, row: Row) -> None:
    item = runs.precision.expected(row)
    if item is not None:
        # What precision that is lost in this place has changed is to be seen, and not to be excused.
        is_counted = runs.precision.is_by_design(row) and not (is_parameter(row) and is_reordered(runs, row))
        (terms.add if item.state == INPUT else terms.add_operand)(item, distance(row) if is_counted else 0.0)


def is_reordered(runs: TwoRuns, row: Row, explained: float = 0.0) -> bool:
    """True if two programs hold the elements of a parameter in another order, such as transposed.

    What the layer returns tells whether it takes them in that order.

    Args:
        runs: the runs.
        row: the tensor.
        explained: the distance that is explained of a result.
    """
    if runs.same_names or row.target is None or row.golden is None or distance(row) < UNRELATED:
        return False
    return relative_difference(row.target, row.golden) <= max(explained, rounding(1.0, runs.precision.unit(row)))


class Bound(NamedTuple):
    """The distance of one output that is explained."""

    rounding: float
    """The distance that the call's own rounding makes."""
    explained: float
    """The distance that its inputs and its rounding make at most."""
    condition: float
    """By how much the terms that the output is made of are larger than it, so that their errors are."""
    of_kernel: float = 0.0
    """The distance that a kernel makes which rounds the partial sums of its result."""


def bound(runs: TwoRuns, call: Call, of: Given, row: Row, inside: float = 0.0, shortest: float = 0.0) -> Bound:
    """Bound the distance of an output.

    Args:
        runs: the runs.
        call: the call.
        of: what it computes from.
        row: the output.
        inside: the largest distance of what calls inside of a module return, which are judged themselves.
        shortest: the unit roundoff of the coarsest dtype that may have taken part unseen.
    """
    target, golden = row.target, row.golden
    assert target is not None and golden is not None
    terms = of.terms
    roundoff = max(
        terms.roundoff, runs.precision.unit(row), shortest, runs.product_roundoff if _may_be_product(of) else 0.0
    )
    of_parameter = call.direction == PARAMETERS_GRAD or (
        of.function == GRADIENT and extent(golden.shape).elements < terms.count
    )
    factor = condition(of.function, terms, target, golden)
    factor = max(factor, condition_of_product(of.function, terms, target, golden, of_parameter))
    own = rounding(terms.summed(golden), roundoff)
    if runs.across_frameworks:
        own = max(own, approximation(call.function))
    error, of_kernel = max(terms.error, inside), 0.0
    found = explained(error, factor, own)
    if call.parsed is not None and not call.is_forward:
        of_kernel = CONFIDENCE * error_of_partial_sums(call.parsed, target, golden, terms.count, terms.scale)
        own, found = max(own, of_kernel / factor), math.hypot(found, of_kernel)
    return Bound(factor * own, found, factor, of_kernel)


def _may_be_product(of: Given) -> bool:
    return of.function in ("", GRADIENT) or bool(of.terms.operands[1] > 1)
