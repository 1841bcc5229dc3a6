"""One result judged."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from probe.precheck.verdict import bounds, dropout, fits, interpretation, places, tolerance
from probe.precheck.verdict.formats import Format, format_of, rounded_to, spacing
from probe.precheck.verdict.subject import (
    ERROR,
    EXACT,
    NONFINITE,
    NOT_RUN,
    PASS,
    STRUCTURE,
    SUSPECT,
    Array,
    Subject,
    Value,
    Verdict,
)  # fmt: skip

MOST_SUSPECT = 10.0
"""Up to this ratio of error to tolerance a result is suspect, beyond it an error."""
BIAS_OF_KNOWN = 1 / 16
BIAS_OF_OTHERS = 0.3
"""From this part of the tolerance on a factor that all elements have in common is reported: where all that rounds is
known, and elsewhere. One constant that is rounded inside, or one number that a whole row is divided by, makes a factor
of a unit roundoff, which is a quarter of the least tolerance."""
BIAS_SIGMAS = 8.0
"""And if independent roundings would give it with a probability of about 1e-15."""
LEAST_UNIT = 2.0**-14
"""In finer formats a factor this small is of no consequence, and the tolerance of each element finds a larger one."""
LEAST_BIASED = 64
"""Fewer elements tell nothing of all."""


def judge(subject: Subject) -> Verdict:
    """What is to be said of one output, or of the gradient of one input."""
    result, reference = subject.result, subject.reference
    if result.shape != reference.shape:
        words = f"shape {list(result.shape)} where the reference has {list(reference.shape)}"
        return Verdict(STRUCTURE, words)
    if (result.dtype.kind == "c") != (reference.dtype.kind == "c"):
        kinds = ("real", "complex") if reference.dtype.kind == "c" else ("complex", "real")
        return Verdict(STRUCTURE, f"{kinds[0]} numbers where the reference has {kinds[1]} ones")
    if not result.size:
        return Verdict(EXACT, "no elements", "exact")
    with np.errstate(all="ignore"):
        dropped = dropout.judge(subject)
        if dropped is not None:
            return dropped
        of = format_of(subject.dtype)
        if of is None or reference.dtype.kind in "biu":
            return _judge_whole(subject)
        return _judge_numbers(subject, of)


def _judge_whole(subject: Subject) -> Verdict:
    """Integers and truth values are equal, or are places of equal values."""
    result, reference = subject.result, subject.reference
    if result.dtype.kind == "f" and reference.dtype.kind == "f":
        return Verdict(NOT_RUN, f"no rule for the dtype {subject.dtype}")
    differs = np.asarray(result != reference)
    if not differs.any():
        return Verdict(EXACT, "equal", "exact", 0.0, 0.0, share_over=0.0)
    if places.are_ties(subject):
        return Verdict(EXACT, "other places of equal values", "exact", 0.0, 0.0, share_over=0.0)
    first = np.unravel_index(int(differs.argmax()), differs.shape)
    count = int(np.count_nonzero(differs))
    index = tuple(map(int, first))
    return Verdict(
        ERROR,
        interpretation.of_whole(subject, differs),
        "exact",
        math.inf,
        0.0,
        index,
        result[first].item(),
        reference[first].item(),
        share_over=count / differs.size,
    )


def _judge_numbers(subject: Subject, of: Format) -> Verdict:
    kind: Any = np.complex128 if of.is_complex else np.float64
    result = np.asarray(subject.result, kind)
    reference = np.asarray(subject.reference, kind)
    error = result - reference
    if not np.isfinite(error).all():
        found = _nonfinite(subject, result, reference, of)
        if found is not None:
            return found
        # What agrees without being finite has no error, and takes no part in what follows.
        finite = np.isfinite(error)
        result, reference = np.where(finite, result, 0), np.where(finite, reference, 0)
        error = result - reference
    bound = bounds.bound_of(subject)
    distance = np.abs(error)
    if not distance.any() or np.array_equal(result, rounded_to(reference, of)):
        return _exact(str(bound), distance, reference, of)
    magnitude = np.abs(reference)
    unit = tolerance.working_unit(subject, of)
    allowed = tolerance.least_tolerance(magnitude, reference, bound, of, unit)
    factor = _common_factor(error, reference, allowed, bound, unit)
    if (distance > allowed).any() or (factor and not bound.unbiased):
        allowed = tolerance.whole_tolerance(subject, allowed, reference, bound, of, unit)
        factor = _common_factor(error, reference, allowed, bound, unit)
    verdict = _measured(result, reference, distance, magnitude, allowed, of, str(bound))
    if verdict.status == PASS:
        return _biased(verdict, factor) if factor else verdict
    return replace(
        verdict,
        fits=fits.best(subject, result, reference, distance, allowed, bound, of, unit),
        interpretation=interpretation.of_numbers(subject, result, reference, distance, allowed, of),
    )


def _exact(bound: str, distance: Array, reference: Array, of: Format) -> Verdict:
    if not distance.any():
        return Verdict(EXACT, "equal", bound, 0.0, 0.0, max_ulp=0.0, mean_ulp=0.0, share_over=0.0)
    ulps = distance / spacing(np.abs(reference), of)
    words = "every element is the nearest number to the exact one"
    return Verdict(EXACT, words, bound, 0.0, 0.0, None, None, None, float(ulps.max()), float(ulps.mean()), 0.0)


def _measured(
    result: Array, reference: Array, distance: Array, magnitude: Array, allowed: Array, of: Format, bound: str
) -> Verdict:
    """The numbers of a verdict and the status that they give."""
    ratios = np.where(distance > 0, distance / allowed, 0.0)
    worst = int(ratios.argmax())
    ratio = float(ratios.flat[worst])
    ulps = distance / spacing(magnitude, of)
    status = PASS if ratio <= 1 else SUSPECT if ratio <= MOST_SUSPECT else ERROR
    return Verdict(
        status,
        f"the worst element reaches {ratio:.2g} of its tolerance",
        bound,
        ratio,
        float(allowed.flat[worst]),
        tuple(map(int, np.unravel_index(worst, result.shape))),
        _plain(result.flat[worst]),
        _plain(reference.flat[worst]),
        float(ulps.max()),
        float(ulps.mean()),
        0.0 if ratio <= 1 else float(np.count_nonzero(ratios > 1) / ratios.size),
    )


def _plain(value: Any) -> Value:
    number: Value = value.item()
    return number


def _common_factor(error: Array, reference: Array, allowed: Array, bound: bounds.Bound, unit: float) -> float:
    """By how much all elements are too large, as a part of them; 0 where that is no more than roundings make.

    The factor is fitted by least squares to the errors in units of the tolerance; its deviation is the one that
    independent errors of different sizes have (H. White, Econometrica 48, 1980). The same number in many places has the
    same error, so that each value of the reference counts once.
    """
    if unit < LEAST_UNIT or reference.size < LEAST_BIASED:
        return 0.0
    scaled, sizes = (error / allowed).ravel(), (reference / allowed).ravel()
    square = float(sizes @ sizes)
    factor = float(scaled @ sizes) / square if square else 0.0
    least = BIAS_OF_KNOWN if bound.unbiased else BIAS_OF_OTHERS
    if not abs(factor) * math.sqrt(square / sizes.size) > least:
        return 0.0
    _, first = np.unique(reference, return_index=True)
    products = scaled[first] * sizes[first]
    deviation = math.sqrt(float(products @ products))
    return factor if abs(float(products.sum())) > BIAS_SIGMAS * deviation else 0.0


def _biased(verdict: Verdict, factor: float) -> Verdict:
    """The verdict on a result whose elements all pass, but have a factor in common."""
    words = f"every element {interpretation.percent(factor)} {'high' if factor > 0 else 'low'} on average: scale"
    return replace(verdict, status=SUSPECT, interpretation=words)


def _nonfinite(subject: Subject, result: Array, reference: Array, of: Format) -> Verdict | None:
    """The verdict if NaN or infinity stands where the reference does not give it, or the other way round."""
    nan, reference_nan = np.isnan(result), np.isnan(reference)
    # Close to the largest number of the dtype either is right.
    limit = of.overflow * (1 - 4 * tolerance.ROUNDINGS * of.unit)
    if of.is_complex:
        too_large = np.maximum(np.abs(reference.real), np.abs(reference.imag)) >= limit
        agrees = (nan & reference_nan) | (np.isinf(result) & too_large)
    else:
        too_large = np.abs(reference) >= limit
        agrees = (nan & reference_nan) | (np.isinf(result) & too_large & (np.sign(result) == np.sign(reference)))
        if not of.has_infinity:
            agrees |= too_large & (nan | (np.abs(result) == of.largest))
    wrong = ~(np.isfinite(result) & np.isfinite(reference)) & ~agrees
    if not wrong.any():
        return None
    first = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return Verdict(
        NONFINITE,
        interpretation.of_nonfinite(result, reference, wrong, of),
        str(bounds.bound_of(subject)),
        math.inf,
        None,
        tuple(map(int, first)),
        _plain(result[first]),
        _plain(reference[first]),
        share_over=float(np.count_nonzero(wrong) / wrong.size),
    )
