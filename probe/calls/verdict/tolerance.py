"""The largest error that each element of a correct result may have.

Without a rule of its own an operation is judged by its conditioning: rounding errors made inside of it have the size
of the roundings of its inputs, so that the tolerance is the distance that the exact result goes when every input is
moved by one rounding (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 1.5 and 1.6:
forward error <= condition number times backward error). The constants were chosen by
``benchmarks/precheck_verdict.py`` over correct kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probe.calls.verdict.bounds import FLOAT32, HALF, Bound, is_by_squares, known_of
from probe.calls.verdict.subject import Array, Subject
from probe.common.numerics.formats import Format, unit_roundoff
from probe.common.numerics.rounding import rounded_to, rounding_scale, spacing
from probe.common.operations.function import ACTIVATION, ELEMENTWISE, EXACT, ROUNDED_ONCE, SUM, Trait
from probe.common.operations.lookup import function

ROUNDINGS = 4.0
"""Roundings of the result itself that are granted: the last one, and those of what it is multiplied with."""
MOVES = 4.0
"""The largest error, as a multiple of the movement of the result by the roundings of the inputs."""
YARDSTICK = 4.0
"""The largest error, as a multiple of the error of another correct kernel."""
_MEASURED, _OF_ONE_SUM = 1 << 17, 1 << 10
"""The elements of the largest tensors with which the constants were chosen, and those that share what one sum loses: a
row that is divided by it. A guess: rows may be longer or shorter, and its logarithm counts."""
_LIKELY_MOVE = 1 / math.sqrt(3)
"""The mean error that roundings make, at most, by what moving all numbers by a whole unit roundoff does: the square of
a rounding is a third of the largest on average, and the farthest of several moves is no less than their mean square."""
_LIKELY_YARDSTICK = 2.0
"""The mean error of one correct kernel by that of another. A guess, not measured: another order of summing
may round twice as much."""
TWICE_ROUNDED = 1 + 2.0**-10
"""A result that is rounded to float32 first, or a reference that is not exact, adds this to half a unit."""
_FLUSHED = 2.0**7
"""Smallest normal numbers: where kernels set subnormal numbers to zero, one inside may be multiplied afterwards."""
_ACCUMULATION = unit_roundoff("float32")
"""Sums of lower precision are accumulated in float32, but for the partial sums that conditioning grants."""
_LEAST_MOVE = 2.0**-40
"""Smaller moves drown in the roundings of the reference; the effect of a move is proportional to it."""


def working_unit(subject: Subject, of: Format) -> float:
    """The unit roundoff in which a correct kernel computes.

    It is that of the result; a gradient is computed from the gradient of the output, and no better than that came.
    """
    unit = max(of.unit, unit_roundoff(subject.precision)) if subject.precision else of.unit
    if subject.direction == "backward" and subject.input_dtypes:
        return max(unit, unit_roundoff(subject.input_dtypes[-1]))
    return unit


def is_summed_in_float32(bound: Bound, unit: float) -> bool:
    """True if a correct kernel sums with more digits than it returns, and rounds the sum once."""
    return bound.sums_in == FLOAT32 and unit > _ACCUMULATION


def growth(bound: Bound, unit: float) -> float:
    """The error of a sum from its roundings, in units of the result, and the factor granted for conditioning.

    Sums of n terms one after the other lose about sqrt(n) units (N. J. Higham and T. Mary, A New Approach to
    Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41, 2019); several accumulators beside each other, which
    every kernel has, lose less.
    """
    if bound.terms <= 1:
        return 0.0
    is_half = bound.sums_in == HALF and bound.kind == SUM
    return math.sqrt(bound.terms) / 2 * (1.0 if is_half else min(_ACCUMULATION, unit) / unit)


def least_tolerance(magnitude: Array, reference: Array, bound: Bound, of: Format, unit: float) -> Array:
    """The tolerance without any evaluation: the roundings of the result itself.

    Args:
        magnitude: the absolute values of `reference`, which is float64 and finite.
        unit: as `working_unit` gives it.
    """
    if bound.kind == EXACT:
        return _to_nearest(reference, of) * TWICE_ROUNDED
    if bound.kind == ROUNDED_ONCE:
        return np.asarray(spacing(magnitude, of) * (TWICE_ROUNDED / 2))
    flushed = _FLUSHED * of.smallest_normal if of.may_flush else 0.0
    if is_summed_in_float32(bound, unit):
        # The last rounding, and before it those of a kernel of float32.
        last = spacing(magnitude, of) * (unit / of.unit * TWICE_ROUNDED / 2)
        units = (ROUNDINGS + growth(bound, _ACCUMULATION)) * _ACCUMULATION
        return np.asarray(last + rounding_scale(magnitude, of) * units + flushed)
    units = (ROUNDINGS + growth(bound, unit)) * unit
    return np.asarray(rounding_scale(magnitude, of) * units + flushed)


def _to_nearest(reference: Array, of: Format) -> Array:
    """The distance of each element from the nearest number of the format; 0 if that is infinity."""
    distance = np.abs(rounded_to(reference, of) - reference)
    finite = np.isfinite(distance)
    return distance if finite.all() else np.where(finite, distance, 0.0)


@dataclass(frozen=True)
class Beyond:
    """The part beyond the least tolerance; the arrays have an element for each of the result, or are missing."""

    added: Array | None = None
    at_least: Array | None = None
    farther: float = 1.0
    """The factor of what is added, above 1 where the result has very many elements."""

    def over(self, least: Array, part: slice = slice(None)) -> Array:
        """The tolerance of a part of the elements, counted without dimensions, from their least one."""
        tolerance = least
        if self.added is not None:
            added = self.added.reshape(-1)[part].reshape(least.shape)
            tolerance = tolerance + (added if self.farther == 1 else self.farther * added)
        if self.at_least is not None:
            tolerance = np.maximum(tolerance, self.at_least.reshape(-1)[part].reshape(least.shape))
        return tolerance

    def likely(self, least: Array, share: float, part: slice = slice(None)) -> Array:
        """The mean error that correct kernels have at most, for each element.

        Args:
            least: as for `over`.
            share: of it, as `likely_share` gives it.
        """
        error = least * share
        if self.added is not None:
            error = error + self.added.reshape(-1)[part].reshape(least.shape) * (_LIKELY_MOVE / MOVES)
        if self.at_least is not None:
            at_least = self.at_least.reshape(-1)[part].reshape(least.shape)
            error = np.maximum(error, at_least * (_LIKELY_YARDSTICK / YARDSTICK))
        return error


NOTHING = Beyond()


def likely_share(bound: Bound, unit: float) -> float:
    """The part of the least tolerance that the mean error of a correct kernel is at most.

    A rounding is uniformly distributed: its mean is half of the largest one, its root of the mean square 1 / sqrt(3) of
    it. Of n independent ones the root of the mean square, which no mean exceeds, is sqrt(n / 3), of n granted.
    """
    return 0.5 if is_summed_in_float32(bound, unit) else 1 / math.sqrt(3 * ROUNDINGS)


def beyond(subject: Subject, bound: Bound, of: Format, unit: float, moves_inside: bool) -> Beyond:
    """The tolerance beyond the least one, from the conditioning or from another correct kernel.

    Args:
        moves_inside: whether what is computed inside is moved as well as the inputs.
    """
    if bound.kind in (EXACT, ROUNDED_ONCE):
        return NOTHING
    if is_summed_in_float32(bound, unit):
        added = _before_the_last_rounding(subject, bound, unit, moves_inside)
        return _or_yardstick(subject, added, _farther(bound, added.size))
    # Kernels of lower precision compute in float32 inside; those of float32 do so in what is rounded to as well.
    inside = 2.0 if unit <= _ACCUMULATION else 1.0
    reference = subject.reference
    added = np.zeros(reference.shape)
    step = max(unit, _LEAST_MOVE)
    moved = subject.moved(step, False)
    if moves_inside and moved is not None:
        further = subject.moved(step, True)
        if further is not None:
            # Kernels of lower precision round to it at the end only, and that is granted already.
            last = step * np.abs(reference) if unit > _ACCUMULATION else 0.0
            moved = np.fmax(moved, further - last)
    if moved is not None:
        if bound.kind == SUM:
            moved = np.maximum(moved, step * _likely_size_of_terms(subject))
        added += _finite(moved) if bound.kind == ELEMENTWISE else _no_less_than_typical(moved, bound.by_norm)
        added *= MOVES * (inside + growth(bound, unit)) * unit / step
        if not reference.any() and not moved.any():
            added += ROUNDINGS * unit * _least_size(subject)
    if subject.direction == "forward" and is_by_squares(subject.base):
        added += _lost_in_squares(subject, inside * ROUNDINGS * unit)
    if bound.kind == ACTIVATION:
        added += inside * ROUNDINGS * unit * _sizes_inside(subject)
    return _or_yardstick(subject, added, _farther(bound, added.size))


def _likely_size_of_terms(subject: Subject) -> float:
    """The norm of the terms of a sum, which it moves by if each is moved by its unit: the root of the mean square.

    A few draws of such moves may miss it by luck, which a tensor of many sums shows in the others, and a single sum,
    such as the gradient of a number that was broadcast, does not. It is 0 where the terms are not known.
    """
    inputs = subject.inputs
    if not inputs:
        return 0.0
    name = known_of(subject.base, subject.direction).name
    if subject.direction == "forward":
        terms = inputs[0] if function(name).has(Trait.ADDS) else None
    else:
        others = [value for value in inputs[:-1] if value.shape == inputs[-1].shape]
        factor = 1.0 if name in ("add", "sub") else others[0] if name == "mul" and others else None
        terms = None if factor is None else np.asarray(inputs[-1] * factor)
    if terms is None or terms.dtype.kind not in "fc":
        return 0.0
    return math.sqrt(float(np.square(np.abs(terms).astype(np.float64)).sum()) / max(subject.result.size, 1))


def _farther(bound: Bound, size: int) -> float:
    """The ratio of the worst error of a large tensor to those with which the constants were chosen.

    What sums lose is about normally distributed, and the largest of n such errors grows as sqrt(2 ln n). The few
    roundings of an elementwise function have a largest error whatever n is.
    """
    if bound.kind in (ELEMENTWISE, ACTIVATION) or size <= _MEASURED:
        return 1.0
    return math.sqrt(math.log(size / _OF_ONE_SUM) / math.log(_MEASURED / _OF_ONE_SUM))


def _or_yardstick(subject: Subject, added: Array, farther: float) -> Beyond:
    other, reference = subject.yardstick(), subject.reference
    if other is None or other.shape != reference.shape:
        return Beyond(added, farther=farther)
    return Beyond(added, YARDSTICK * _no_less_than_typical(np.abs(other - reference)), farther)


def _before_the_last_rounding(subject: Subject, bound: Bound, unit: float, moves_inside: bool) -> Array:
    """The largest error of a sum in float32 before it is rounded to the result.

    The inputs are numbers of the dtype as they are: only roundings of float32 are made of them. Of a function of
    several operations each rounds what it returns, which is seen inside.
    """
    moved = subject.moved(unit, False)
    added = np.zeros(subject.reference.shape)
    if moved is not None:
        roundings = MOVES * (2.0 + growth(bound, _ACCUMULATION))
        added += _no_less_than_typical(moved) * (roundings * _ACCUMULATION / unit)
    further = subject.moved_inside(unit) if moves_inside else None
    if further is not None:
        # The last one is granted already.
        added += MOVES * _no_less_than_typical(np.fmax(further - unit * np.abs(subject.reference), 0.0))
    return added


def _sizes_inside(subject: Subject) -> Array:
    """The numbers that the parts of an activation, which are between -1 and 1, are multiplied with."""
    sizes = np.abs(subject.inputs[0]).astype(np.float64)
    if subject.direction == "backward":
        gradients = np.abs(subject.inputs[-1]).astype(np.float64)
        if gradients.shape != sizes.shape:
            return np.asarray(max(1.0, float(sizes.max())) * float(gradients.max()))
        return np.asarray(np.maximum(sizes, 1.0) * gradients)
    return sizes if sizes.shape == subject.result.shape else np.asarray(sizes.max())


def _lost_in_squares(subject: Subject, part: float) -> Array:
    """The movement of a distance d when that `part` of the points' squares is added to its own: sqrt(d^2 + e) - d."""
    points = [np.asarray(value, np.float64) for value in subject.inputs[:2] if value.ndim]
    squares = sum(float(np.einsum("...i,...i->...", value, value).max(initial=0.0)) for value in points)
    distance = np.abs(subject.reference)
    return np.asarray(np.sqrt(distance**2 + part * squares) - distance)


def _least_size(subject: Subject) -> float:
    """The largest number of the input whose numbers are smallest.

    Where an operation gives zeros whatever its inputs are, as a normalisation of one element does, a correct kernel may
    give the difference of two numbers that are rounded differently.
    """
    floats = (value for value in subject.inputs if value.dtype.kind == "f" and value.size)
    return min((float(np.abs(value).max()) for value in floats), default=0.0)


def _no_less_than_typical(values: Array, by_norm: bool = False) -> Array:
    """`values`, each at least what is typical of the tensor: what cancels in one element by luck is seen in others.

    The square of the mean root stands for the typical value, since single large ones would carry the mean away; if only
    a norm is bounded it is the root of the mean square.
    """
    values = _finite(values)
    if by_norm:
        return np.asarray(np.maximum(values, math.sqrt(float(np.square(values).mean()))))
    return np.asarray(np.maximum(values, float(np.sqrt(values).mean()) ** 2))


def _finite(values: Array) -> Array:
    """`values`, zero where they are not finite: that grants nothing."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, 0.0)
