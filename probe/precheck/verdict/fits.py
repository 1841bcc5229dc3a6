"""Which lower precision explains a failing result."""

from __future__ import annotations

import numpy as np

from probe.precheck.verdict import tolerance
from probe.precheck.verdict.bounds import CONDITIONING, Bound
from probe.precheck.verdict.formats import Format, format_of, rounded_to
from probe.precheck.verdict.subject import Array, Subject

LOWER = ("tfloat32", "float16", "bfloat16")
"""The finest first: what fits a finer precision fits a coarser one too."""
_CLEARLY = 8.0
"""How many times smaller the error must become to call it explained."""
_LEAST_ELEMENTS = 4
"""Fewer fit anything."""
_LEAST_SHARE = 0.02
"""The errors must be this part, on average, of what the precision would be granted; smaller ones are those of a finer
one."""


def stored_or_rounded(
    subject: Subject, result: Array, reference: Array, distance: Array, allowed: Array, of: Format, unit: float
) -> str | None:
    """``bfloat16 result`` or ``tfloat32 inputs``; ``None`` if neither fits clearly.

    Args:
        distance: of each element from `reference`.
        allowed: the tolerance that some elements exceed.
        unit: in which a correct kernel computes.
    """
    lower = _lower_than(unit)
    if result.size < _LEAST_ELEMENTS or of.is_complex:
        return None
    for form in reversed(lower):
        if _is_result_of(result, reference, distance, allowed, form):
            return f"{form.name} result"
    size = _rms(distance)
    for form in lower:
        if _fits_inputs(subject, result, size, allowed, form):
            return f"{form.name} inputs"
    return None


def _lower_than(unit: float) -> list[Format]:
    return [form for form in map(format_of, LOWER) if form is not None and form.unit > unit]


def _is_result_of(result: Array, reference: Array, distance: Array, allowed: Array, form: Format) -> bool:
    """Whether every value is one that the format has, where the exact ones are not, and no farther off than that."""
    if not np.array_equal(rounded_to(result, form), result):
        return False
    exact = rounded_to(reference, form)
    if np.count_nonzero(np.abs(exact - reference) > allowed) < min(_LEAST_ELEMENTS, result.size / 4):
        return False
    return bool((distance <= allowed + 2 * form.unit * np.maximum(np.abs(reference), form.smallest_normal)).all())


def _fits_inputs(subject: Subject, result: Array, size: float, allowed: Array, form: Format) -> bool:
    """Whether the result is what the operation gives of inputs rounded to the format."""
    rounded = subject.rounded(form.name)
    if rounded is None or rounded.shape != result.shape or not np.isfinite(rounded).all():
        return False
    left = np.abs(result - rounded)
    return bool(_rms(left) * _CLEARLY <= size and np.count_nonzero(left > 2 * allowed) <= 0.001 * left.size)


def accumulated(
    subject: Subject, reference: Array, distance: Array, bound: Bound, of: Format, unit: float
) -> str | None:
    """``bfloat16 accumulation``: the precision whose roundings inside make errors of this size all over the tensor."""
    # A single wrong element, or a wrong part, is no matter of precision.
    if np.count_nonzero(distance) < 0.5 * distance.size or float(distance.max()) > 30 * float(distance.mean()):
        return None
    if distance.size < _LEAST_ELEMENTS or of.is_complex:
        return None
    magnitude = np.abs(reference)
    for form in _lower_than(unit):
        # No device accumulates in tfloat32, whose roundoff is that of float16.
        if form.name == "tfloat32":
            continue
        least = tolerance.least_tolerance(magnitude, reference, Bound(CONDITIONING), form, form.unit)
        reach = tolerance.whole_tolerance(subject, least, reference, Bound(CONDITIONING), form, form.unit)
        if (distance <= reach).all() and _rms(distance) > _LEAST_SHARE * _rms(reach):
            return f"{form.name} accumulation"
    return None


def _rms(values: Array) -> float:
    flat = values.ravel()
    return float(np.sqrt(flat @ flat / flat.size))
