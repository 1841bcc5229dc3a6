"""A lower precision that explains a failing result."""

from __future__ import annotations

import math

import numpy as np

from probe.calls.verdict import tolerance
from probe.calls.verdict.bounds import Bound
from probe.calls.verdict.subject import Array, Subject
from probe.common.numerics.formats import Format, rounding_format
from probe.common.numerics.rounding import rounded_to
from probe.common.operations.function import CONDITIONING, DOT_PRODUCT, SUM

LOWER = ("tfloat32", "float16", "bfloat16")
"""The finest first."""
_CLEARLY = 8.0
"""The factor by which the error must become smaller to count as explained."""
_LEAST_ELEMENTS = 4
"""Fewer fit anything."""
_LEAST_SHARE = 0.02
"""The errors must be this part, on average, of what the precision would be granted; smaller ones are those of a finer
one."""


def stored_or_rounded(
    subject: Subject, result: Array, reference: Array, distance: Array, allowed: Array, of: Format, unit: float
) -> str | None:
    """``bfloat16 result`` or ``tfloat32 or float16 inputs``; ``None`` if nothing fits clearly.

    Args:
        distance: of each element from `reference`.
        allowed: the tolerance that some elements exceed.
        unit: in which a correct kernel computes.
    """
    lower = _lower_than(unit)
    if result.size < _LEAST_ELEMENTS or of.is_complex:
        return None
    size = _rms(distance)

    def kind(form: Format) -> str | None:
        rounded = _of_rounded_inputs(subject, form)
        if _is_stored_in(result, reference, allowed, form):
            if _are_roundings(distance, reference, allowed, form):
                return "result"
            if rounded is not None and _are_roundings(np.abs(result - rounded), rounded, allowed, form):
                return "inputs and result"
        if rounded is not None:
            left = np.abs(result - rounded)
            if _rms(left) * _CLEARLY <= size and np.count_nonzero(left > 2 * allowed) <= 0.001 * left.size:
                return "inputs"
        return None

    found = [(form, words) for form in lower for words in [kind(form)] if words]
    if not found:
        return None
    # What fits a format fits finer ones, too; and two are one where no number is beyond the range of float16.
    coarsest, words = max(found, key=lambda one: one[0].unit)
    names = [form.name for form, kind in found if form.unit == coarsest.unit and kind == words]
    return f"{' or '.join(names)} {words}"


def _lower_than(unit: float) -> list[Format]:
    return [form for form in map(rounding_format, LOWER) if form is not None and form.unit > unit]


def _is_stored_in(result: Array, reference: Array, allowed: Array, form: Format) -> bool:
    """True if the format has every value of the result, and lacks some of the right ones."""
    if not np.array_equal(rounded_to(result, form), result):
        return False
    lost = np.abs(rounded_to(reference, form) - reference)
    return bool(np.count_nonzero(lost > allowed) >= min(_LEAST_ELEMENTS, result.size / 4))


def _are_roundings(distance: Array, exact: Array, allowed: Array, form: Format) -> bool:
    """True if these distances are no more than roundings to the format make."""
    return bool((distance <= allowed + 2 * form.unit * np.maximum(np.abs(exact), form.smallest_normal)).all())


def _of_rounded_inputs(subject: Subject, form: Format) -> Array | None:
    """The reference of inputs that are rounded to the format."""
    rounded = subject.rounded(form.name)
    if rounded is None or rounded.shape != subject.result.shape or not np.isfinite(rounded).all():
        return None
    return rounded


def accumulated(
    subject: Subject, reference: Array, distance: Array, bound: Bound, of: Format, unit: float
) -> str | None:
    """``bfloat16 accumulation``: the precision whose roundings inside make errors of this size all over the tensor."""
    if bound.kind not in (DOT_PRODUCT, SUM, CONDITIONING):
        return None
    # A single wrong element, or a wrong part, is no matter of precision.
    if np.count_nonzero(distance) < 0.5 * distance.size or float(distance.max()) > 30 * float(distance.mean()):
        return None
    if distance.size < _LEAST_ELEMENTS or of.is_complex:
        return None
    magnitude = np.abs(reference)
    lower = [form for form in map(rounding_format, LOWER) if form is not None and form.unit >= unit]
    for form in lower:
        # No device accumulates in tfloat32, whose roundoff is that of float16; and float32 was accumulated in if it is
        # no lower precision than that of the result.
        if form.name == "tfloat32" or (form.unit == unit and not tolerance.is_summed_in_float32(bound, unit)):
            continue
        least = tolerance.least_tolerance(magnitude, reference, Bound(CONDITIONING), form, form.unit)
        reach = tolerance.beyond(subject, Bound(CONDITIONING), form, form.unit, False).over(least)
        if form.unit == unit:
            # One after the other, in the precision that the result has anyway.
            reach = reach * (1 + math.sqrt(bound.terms) / 2)
        if (distance <= reach).all() and _rms(distance) > _LEAST_SHARE * _rms(reach):
            return f"{form.name} accumulation"
    return None


def _rms(values: Array) -> float:
    flat = values.ravel()
    return float(np.sqrt(np.einsum("i,i->", flat, flat) / flat.size))
