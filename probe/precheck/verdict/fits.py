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


def best(
    subject: Subject, result: Array, reference: Array, distance: Array, allowed: Array, bound: Bound, of: Format,
    unit: float,
) -> str | None:  # fmt: skip
    """Words as ``bfloat16 result``, ``tfloat32 inputs``, ``bfloat16 accumulation``; ``None`` if nothing fits clearly.

    Args:
        distance: of each element from `reference`.
        allowed: the tolerance that some elements exceed.
        unit: in which a correct kernel computes.
    """
    lower = [form for form in map(format_of, LOWER) if form is not None and form.unit > unit]
    if result.size < _LEAST_ELEMENTS or result.dtype.kind == "c" or not lower:
        return None
    size = _rms(distance)
    for form in reversed(lower):
        if _is_result_of(result, reference, distance, allowed, form):
            return f"{form.name} result"
    for form in lower:
        if _fits_inputs(subject, result, size, allowed, form):
            return f"{form.name} inputs"
    return _accumulation(subject, reference, distance, bound, of, unit, lower)


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


def _accumulation(
    subject: Subject, reference: Array, distance: Array, bound: Bound, of: Format, unit: float, lower: list[Format]
) -> str | None:
    """The precision whose roundings inside of the operation make errors of this size, all over the tensor."""
    step = max(unit, 2.0**-40)
    moved = subject.moved(step)
    if moved is None or not np.isfinite(moved).all() or not moved.any():
        return None
    # A single wrong element, or a wrong part, is no matter of precision.
    if np.count_nonzero(distance) < 0.5 * distance.size or float(distance.max()) > 30 * float(distance.mean()):
        return None
    for name in ("float16", "bfloat16"):
        form = format_of(name)
        if form is None or form not in lower:
            continue
        reach = tolerance.MOVES * moved * (form.unit / step) + 2 * form.unit * np.abs(reference)
        reach = tolerance.least_tolerance(np.abs(reference), reference, Bound(CONDITIONING), of, form.unit) + reach
        if (distance <= reach).all() and _rms(distance) > 0.02 * _rms(reach):
            return f"{name} accumulation"
    return None


def _rms(values: Array) -> float:
    flat = values.ravel()
    return float(np.sqrt(flat @ flat / flat.size))
