"""A failing result described in one line, and the lower precision that explains it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from probe.calls.verdict import tolerance
from probe.calls.verdict.bounds import Bound
from probe.calls.verdict.subject import Array, Subject
from probe.common.numerics.formats import Format, rounding_format
from probe.common.numerics.rounding import rounded_to
from probe.common.operations.function import CONDITIONING, DOT_PRODUCT, SUM

_CLOSE = 2.0
"""The number of tolerances from the reference, changed in the way that a detector tries, that still counts as equal."""
_NEARLY = 0.999
"""The share of elements for which an explanation must hold."""
_CLEARLY = 4.0
"""The factor by which the errors that an explanation leaves must be smaller."""


def percent(part: float) -> str:
    """A part as per cent with two digits."""
    return f"{abs(100 * part):.2g} %"


class Interpretation(NamedTuple):
    """One line, and whether it says how the wrong values came about."""

    words: str
    explains: bool


def on_numbers(
    subject: Subject, result: Array, reference: Array, distance: Array, allowed: Array, of: Format
) -> Interpretation:
    """A description of floats out of tolerance; the arrays are of one shape, in float64 or complex128."""
    failure = _Failure(subject, result, reference, distance, allowed, distance > allowed, of)
    for detector in _DETECTORS:
        words = detector(failure)
        if words:
            return Interpretation(words, True)
    return Interpretation(_part(failure), False)


def on_whole(subject: Subject, differs: Array) -> str:
    """One line on integers or truth values that differ."""
    return _where(differs)


def on_nonfinite(result: Array, reference: Array, wrong: Array) -> str:
    """One line on NaN and infinity that stand on one side only."""
    first = tuple(map(int, np.unravel_index(int(wrong.argmax()), wrong.shape)))
    count = int(np.count_nonzero(wrong))
    nan, infinite = np.isnan(result) & wrong, np.isinf(result) & wrong
    place = f"in {count} of {wrong.size}, first at {list(first)}"
    if nan.any() or infinite.any():
        what = "NaN and infinity" if nan.any() and infinite.any() else "NaN" if nan.any() else "infinity"
        other = reference[first]
        return f"{what} {place}, where the reference is {other:.6g}"
    return f"{result[first]:.6g} where the reference is {reference[first]} {place}"


@dataclass(frozen=True)
class _Failure:
    """The input of the detectors."""

    subject: Subject
    result: Array
    reference: Array
    distance: Array
    allowed: Array
    over: Array
    of: Format

    def is_like(self, other: Array) -> bool:
        """True if the result is `other`, within the tolerance nearly everywhere, and much closer to it than to what it
        should be."""
        distance = np.abs(self.result - other)
        scale = np.maximum(np.abs(other), self.of.smallest_normal)
        close = np.count_nonzero(distance <= _CLOSE * (self.allowed + self.of.unit * scale))
        return bool(close >= _NEARLY * distance.size and distance.sum() * _CLEARLY <= self.distance.sum())


def _all_zero(failure: _Failure) -> str | None:
    return "every element is zero, so nothing was computed" if not failure.result.any() else None


def _sign(failure: _Failure) -> str | None:
    flipped = np.abs(failure.result + failure.reference) <= np.minimum(_CLOSE * failure.allowed, failure.distance / 4)
    if (flipped | ~failure.over).all():
        count = int(np.count_nonzero(failure.over))
        return "sign flipped" if count >= 0.5 * failure.over.size else f"sign flipped: {_where(failure.over)}"
    return None


def _scale(failure: _Failure) -> str | None:
    """One factor for all elements."""
    result, reference = failure.result.ravel(), failure.reference.ravel()
    if result.size < 2:
        return None
    weights = 1 / np.maximum(failure.allowed.ravel(), failure.of.smallest_normal)
    sizes = reference * weights
    factor = np.vdot(sizes, result * weights) / np.vdot(sizes, sizes)
    if not np.isfinite(factor) or factor == 0 or not failure.is_like(failure.reference * factor):
        return None
    if np.iscomplexobj(factor):
        return f"every element {factor:.4g} times what it should be: scale"
    off = float(factor) - 1
    if abs(off - 1) < 0.01:
        return "every element twice as large as it should be: scale"
    if 0.1 < factor < 10 and abs(off) < 0.2:
        return f"every element {percent(off)} {'high' if off > 0 else 'low'}: scale"
    return f"every element {factor:.4g} times what it should be: scale"


def _offset(failure: _Failure) -> str | None:
    """One number added to all elements."""
    if failure.result.size < 4:
        return None
    offset = np.median((failure.result - failure.reference).real)
    return f"{offset:.3g} added to every element" if failure.is_like(failure.reference + offset) else None


def _saturated(failure: _Failure) -> str | None:
    values = np.abs(failure.result[failure.over])
    level = float(values.max())
    is_beyond = (np.abs(failure.reference[failure.over]) > level * (1 - failure.of.unit)).all()
    is_limit = level and level == float(np.abs(failure.result).max())
    if is_limit and is_beyond and (values == level).all() and (values.size > 1 or level == failure.of.largest):
        return f"saturated at {level:.6g} in {values.size} of {failure.result.size}"
    return None


def _unchanged(failure: _Failure) -> str | None:
    """An input given back."""
    for number, value in enumerate(failure.subject.inputs):
        if value.shape == failure.result.shape and np.array_equal(value, failure.result):
            is_gradient = failure.subject.direction == "backward" and number == len(failure.subject.inputs) - 1
            return (
                f"equals {'the gradient of the output' if is_gradient else f'input {number}'}, so nothing was computed"
            )
    return None


def _shifted(failure: _Failure) -> str | None:
    """Every element one place farther along a dimension."""
    for dim, size in enumerate(failure.result.shape):
        for step in (1, -1):
            if size < 3:
                continue
            inner = [slice(None)] * failure.result.ndim
            inner[dim] = slice(1, None) if step == 1 else slice(None, -1)
            moved = np.roll(failure.reference, step, dim)
            place = tuple(inner)
            close = np.abs(failure.result - moved)[place] <= _CLOSE * failure.allowed[place]
            close |= np.abs(failure.result - moved)[place] <= _CLOSE * np.roll(failure.allowed, step, dim)[place]
            if close.all():
                return f"shifted by {'one' if step == 1 else 'minus one'} along dim {dim}"
    return None


def _transposed(failure: _Failure) -> str | None:
    shape = failure.result.shape
    for dim in range(len(shape) - 1):
        if shape[dim] == shape[dim + 1] > 1 and failure.is_like(failure.reference.swapaxes(dim, dim + 1)):
            return f"dimensions {dim} and {dim + 1} swapped"
    return None


def _broadcast(failure: _Failure) -> str | None:
    """One slice of the reference stands in all places of a dimension."""
    for dim, size in enumerate(failure.result.shape):
        if size < 2 or not (failure.result == failure.result.take([0], dim)).all():
            continue
        # Equal numbers may differ in the last digits of float64.
        if (np.abs(failure.reference - failure.reference.take([0], dim)) > failure.allowed).any():
            return f"the same values all along dim {dim}"
    return None


def _part(failure: _Failure) -> str:
    """The region of the wrong elements, and their contents."""
    over = failure.over
    count = int(np.count_nonzero(over))
    if count == over.size:
        return _where(over)
    values = failure.result[over]
    content = " (zeros)" if not values.any() else ""
    if not content and count > 3 and (values == values[0]).all():
        content = " (all the same value)"
    if count == 1:
        return _where(over) + content
    for dim, size in enumerate(over.shape):
        if size < 2:
            continue
        others = tuple(axis for axis in range(over.ndim) if axis != dim)
        share = over.mean(axis=others) if others else over.astype(float)
        wrong = np.flatnonzero(share)
        if len(wrong) < size and share[wrong].min() > 0.5 and wrong[-1] - wrong[0] + 1 == len(wrong):
            return _range(dim, int(wrong[0]), int(wrong[-1]), size) + content
    first = int(over.argmax())
    if first and over.ravel()[first:].all():
        return f"last {count} of {over.size} elements wrong{content}"
    return _where(over) + content


def _range(dim: int, first: int, last: int, size: int) -> str:
    if first == last:
        return f"index {first} of dim {dim} only"
    if last == size - 1:
        return f"last {last - first + 1} of dim {dim} wrong"
    if first == 0:
        return f"first {last + 1} of dim {dim} wrong"
    return f"indices {first} to {last} of dim {dim} wrong"


def _where(over: Array) -> str:
    """The number of wrong elements, and the index of the first."""
    count = int(np.count_nonzero(over))
    if not over.ndim or count == over.size:
        return "every element is over its tolerance" if over.size > 1 else "the only element is over its tolerance"
    first = tuple(map(int, np.unravel_index(int(over.argmax()), over.shape)))
    if count > 1:
        return f"{count} of {over.size} elements over their tolerance, first at {list(first)}"
    return "first element only" if not any(first) else f"one element only, at {list(first)}"


_DETECTORS: tuple[Callable[[_Failure], str | None], ...] = (
    _all_zero, _unchanged, _sign, _scale, _saturated, _offset, _shifted, _transposed, _broadcast,
)  # fmt: skip


# --- fits


LOWER = ("tfloat32", "float16", "bfloat16")
"""The finest first."""
_CLEARLY_WORSE = 8.0
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
        rounded = _reference_of_rounded_inputs(subject, form)
        if _is_stored_in(result, reference, allowed, form):
            if _are_roundings(distance, reference, allowed, form):
                return "result"
            if rounded is not None and _are_roundings(np.abs(result - rounded), rounded, allowed, form):
                return "inputs and result"
        if rounded is not None:
            left = np.abs(result - rounded)
            if _rms(left) * _CLEARLY_WORSE <= size and np.count_nonzero(left > 2 * allowed) <= 0.001 * left.size:
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


def _reference_of_rounded_inputs(subject: Subject, form: Format) -> Array | None:
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
