"""One result judged."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from probe.calls.verdict import bounds, dropout, interpretation, tolerance
from probe.calls.verdict.bounds import Bound
from probe.calls.verdict.subject import (
    ERROR,
    EXACT,
    NONFINITE,
    NOT_RUN,
    PASS,
    STRUCTURE,
    SUSPECT,
    Array,
    KernelVerdict,
    Subject,
    Value,
)  # fmt: skip
from probe.calls.verdict.tolerance import Beyond
from probe.common.numerics.formats import Format, rounding_format
from probe.common.numerics.rounding import rounded_to, spacing
from probe.common.operations.function import EXACT as EXACT_ROUNDING
from probe.common.operations.function import ROUNDED_ONCE


def are_ties(subject: Subject) -> bool:
    """True if the result and the reference are places of the same values of the first input."""
    rule = bounds.place_rule(subject.base)
    if rule is None or not subject.inputs or subject.result.dtype.kind not in "iu":
        return False
    argument, default, distinct = rule
    dim = subject.settings.get("dim", subject.settings.get("axis", subject.settings.get(str(argument))))
    dim = default if dim is None else dim
    values = subject.inputs[0]
    result, reference = subject.result, np.asarray(subject.reference)
    if dim is None:
        values, result, reference, dim = values.ravel(), result.ravel(), reference.ravel(), 0
    if not isinstance(dim, int) or not -max(values.ndim, 1) <= dim < max(values.ndim, 1):
        return False
    if not values.ndim:
        return False
    dim %= values.ndim
    if result.ndim == values.ndim - 1:
        result, reference = np.expand_dims(result, dim), np.expand_dims(reference, dim)
    others = [size for axis, size in enumerate(values.shape) if axis != dim]
    if [size for axis, size in enumerate(result.shape) if axis != dim] != others or result.ndim != values.ndim:
        return False
    if not _are_within(result, values.shape[dim]):
        return False
    if distinct and _repeats(result, dim):
        return False
    pointed, meant = (np.take_along_axis(values, index.astype(np.int64), dim) for index in (result, reference))
    return bool(np.array_equal(pointed, meant, equal_nan=values.dtype.kind in "fc"))


def _are_within(places: Array, size: int) -> bool:
    return bool(((places >= 0) & (places < size)).all())


def _repeats(places: Array, dim: int) -> bool:
    """True if a place occurs twice along the dimension."""
    return bool((np.diff(np.sort(places, dim), axis=dim) == 0).any())


# --- verdict


PART = 1 << 14
"""Elements that are judged at a time: what is made on the way stays in the cache. Measured: 7 ns an element."""
MOST_SUSPECT = 10.0
"""Up to this ratio of error to tolerance a result is suspect, beyond it an error."""
BIAS_OF_KNOWN = 1 / 16
"""From this part of the tolerance on a factor that all elements have in common is reported, where all that rounds is
known; it is a quarter of a unit roundoff."""
BIAS_OF_OTHERS = 0.15
"""See `LEAST_FACTOR_OF_OTHERS`, which stands with it; a guess."""
LEAST_FACTOR_OF_OTHERS = 2.5
"""Elsewhere it is this part of the tolerance, and this many unit roundoffs: a constant that is rounded inside, or a
number that a whole row is divided by, makes a factor of one."""
SIGMAS = 8.0
"""A factor, or errors that are large on average, are reported beyond so many standard deviations of independent
roundings, which these reach with a probability of about 1e-15."""
LEAST_UNIT = 2.0**-14
"""In finer formats a factor this small is of no consequence, and the tolerance of each element finds a larger one."""
NEAR_OVERFLOW = 16.0
"""Within this factor of the largest number infinity is suspect and no more."""
LEAST_BIASED = 64
"""Fewer elements tell nothing of all."""


def judge(subject: Subject) -> KernelVerdict:
    """The judgement of one output, or of the gradient of one input."""
    result, reference = subject.result, subject.reference
    if result.shape != reference.shape:
        words = f"shape {list(result.shape)} where the reference has {list(reference.shape)}"
        return KernelVerdict(STRUCTURE, words)
    if (result.dtype.kind == "c") != (reference.dtype.kind == "c"):
        kinds = ("real", "complex") if reference.dtype.kind == "c" else ("complex", "real")
        return KernelVerdict(STRUCTURE, f"{kinds[0]} numbers where the reference has {kinds[1]} ones")
    if not result.size:
        return KernelVerdict(EXACT, "no elements", "exact")
    with np.errstate(all="ignore"):
        dropped = dropout.judge(subject)
        if dropped is not None:
            return dropped
        of = rounding_format(subject.dtype)
        if of is None or reference.dtype.kind in "biu":
            return _judge_integers(subject)
        verdict = _judge_numbers(_without_free_signs(_with_largest_of(subject, of)), of)
    why = bounds.why_not_judged(subject.base, subject.direction) if verdict.status in (SUSPECT, ERROR) else None
    return KernelVerdict(NOT_RUN, why) if why else verdict


def _with_largest_of(subject: Subject, of: Format) -> Subject:
    """The largest number of the result's dtype in the place of that of the reference's, which stands for infinity.

    A dtype without infinity may have it for every number that is too large.
    """
    reference = subject.reference
    if reference.dtype != np.float64 or of.largest == sys.float_info.max:
        return subject
    is_largest = np.abs(reference) == sys.float_info.max
    if not of.has_infinity:
        is_largest |= (np.abs(reference) >= of.overflow) & np.isfinite(subject.result)
    if not is_largest.any():
        return subject
    return replace(subject, reference=np.where(is_largest, np.copysign(of.largest, reference), reference))


def _without_free_signs(subject: Subject) -> Subject:
    """Vectors that are as right with the other sign by their absolute values, which are less far from each other."""
    is_free = subject.direction == "forward" and bounds.has_free_signs(subject.base)
    if not is_free or not subject.inputs or subject.result.ndim != subject.inputs[0].ndim:
        return subject
    return replace(subject, result=np.abs(subject.result), reference=np.abs(subject.reference))


def _judge_integers(subject: Subject) -> KernelVerdict:
    """Integers and truth values are equal, or are places of equal values."""
    result, reference = subject.result, subject.reference
    if result.dtype.kind == "f" and reference.dtype.kind == "f":
        return KernelVerdict(NOT_RUN, f"no rule for the dtype {subject.dtype}")
    differs = np.asarray(result != reference)
    if not differs.any():
        return KernelVerdict(EXACT, "equal", "exact", 0.0, 0.0, share_over=0.0)
    if are_ties(subject):
        return KernelVerdict(EXACT, "other places of equal values", "exact", 0.0, 0.0, share_over=0.0)
    first = np.unravel_index(int(differs.argmax()), differs.shape)
    count = int(np.count_nonzero(differs))
    index = tuple(map(int, first))
    return KernelVerdict(
        ERROR,
        interpretation.on_whole(subject, differs),
        "exact",
        math.inf,
        0.0,
        index,
        result[first].item(),
        reference[first].item(),
        share_over=count / differs.size,
    )


def _judge_numbers(subject: Subject, of: Format) -> KernelVerdict:
    bound = bounds.bound_of(subject)
    unit = tolerance.working_unit(subject, of)
    verdict = _judge_by_parts(subject, bound, of, unit, tolerance.NOTHING)
    if verdict is not None:
        return verdict
    finite = np.isfinite(subject.result) & np.isfinite(subject.reference)
    if not finite.all():
        result, reference, _ = _differences(subject.result, subject.reference, of)
        found = _nonfinite(result, reference, bound, of)
        if found is not None:
            return found
        # Equal elements that are not finite have no error and are left out below.
        kept = replace(subject, result=np.where(finite, result, 0), reference=np.where(finite, reference, 0))
        return _judge_numbers(kept, of)
    for moves_inside in (False, True):
        beyond = tolerance.beyond(subject, bound, of, unit, moves_inside)
        verdict = _judge_by_parts(subject, bound, of, unit, beyond)
        if verdict is not None and verdict.status in (EXACT, PASS):
            return verdict
    return verdict or _judge_whole(subject, bound, of, unit, beyond)


def _judge_by_parts(subject: Subject, bound: Bound, of: Format, unit: float, beyond: Beyond) -> KernelVerdict | None:
    """The verdict where every element is within the tolerance; ``None`` elsewhere.

    Part by part, since of a large tensor all numbers that are made on the way would fill the memory.
    """
    results, references = subject.result.reshape(-1), subject.reference.reshape(-1)
    worst, where, level = -1.0, 0, 0.0
    most, total, product, square, reached, likely = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    share = tolerance.likely_share(bound, unit)
    is_equal = is_nearest = True
    for start in range(0, results.size, PART):
        part = slice(start, start + PART)
        result, reference, error = _differences(results[part], references[part], of)
        distance, magnitude = np.abs(error), np.abs(reference)
        is_equal = is_equal and not distance.any()
        is_nearest = is_nearest and np.array_equal(result, rounded_to(reference, of))
        least = tolerance.least_tolerance(magnitude, reference, bound, of, unit)
        allowed = beyond.over(least, part)
        ratios = distance / allowed
        flat = int(ratios.argmax())
        ratio = float(ratios[flat])
        if is_nearest and ratio != ratio:
            # Nothing is granted, and nothing was needed.
            ratio = 0.0
        if not (ratio <= 1 or is_nearest):
            return None
        if ratio > worst:
            worst, where, level = ratio, start + flat, float(allowed[flat])
        reached += float(ratios.sum())
        likely += float((beyond.likely(least, share, part) / allowed).sum())
        ulps = distance / spacing(magnitude, of)
        most = max(most, float(ulps.max()))
        total += float(ulps.sum())
        if not of.is_complex:
            scaled, sizes = error / allowed, reference / allowed
            product += _inner(scaled, sizes)
            square += _inner(sizes, sizes)
    if not math.isfinite(total):
        return None
    mean = total / results.size
    if is_equal or is_nearest:
        words = "equal" if is_equal else "every element is the nearest number to the exact one"
        return KernelVerdict(EXACT, words, str(bound), 0.0, 0.0, max_ulp=most, mean_ulp=mean, share_over=0.0)
    verdict = KernelVerdict(
        PASS,
        f"the worst element reaches {worst:.2g} of its tolerance",
        str(bound),
        worst,
        level,
        _index(where, subject.result.shape),
        _number(results[where]),
        _number(references[where]),
        most,
        mean,
        0.0,
    )
    is_large = reached > likely and _has_a_mean(bound, unit, results.size)
    if is_large and beyond is tolerance.NOTHING:
        return None
    if _may_be_biased(product, square, results.size, bound, unit):
        if beyond is tolerance.NOTHING and not bound.unbiased:
            # The factor that is common to large elements counts, and which these are the conditioning says.
            return None
        factor = _common_factor(subject, bound, of, unit, beyond)
        if factor:
            return _biased(verdict, factor, unit)
    words = _larger_than_likely(subject, bound, of, unit, beyond) if is_large else ""
    if not words:
        return verdict
    _, _, errors = _differences(results, references, of)
    fitting = interpretation.accumulated(subject, references, np.abs(errors), bound, of, unit)
    return replace(verdict, status=SUSPECT, interpretation=words, fits=fitting)


def _differences(result: Array, reference: Array, of: Format) -> tuple[Array, Array, Array]:
    """Result and reference in the type in which they are compared, and how much the result is larger."""
    kind: Any = np.complex128 if of.is_complex else np.float64
    result, reference = np.asarray(result, kind), np.asarray(reference, kind)
    return result, reference, result - reference


def _judge_whole(subject: Subject, bound: Bound, of: Format, unit: float, beyond: Beyond) -> KernelVerdict:
    """The verdict where some element is out of the tolerance."""
    result, reference, error = _differences(subject.result, subject.reference, of)
    distance, magnitude = np.abs(error), np.abs(reference)
    allowed = beyond.over(tolerance.least_tolerance(magnitude, reference, bound, of, unit))
    ratios = np.where(distance > 0, distance / allowed, 0.0)
    worst = int(ratios.argmax())
    ratio = float(ratios.flat[worst])
    ulps = distance / spacing(magnitude, of)
    verdict = KernelVerdict(
        PASS if ratio <= 1 else SUSPECT if ratio <= MOST_SUSPECT else ERROR,
        f"the worst element reaches {ratio:.2g} of its tolerance",
        str(bound),
        ratio,
        float(allowed.flat[worst]),
        _index(worst, result.shape),
        _number(result.flat[worst]),
        _number(reference.flat[worst]),
        float(ulps.max()),
        float(ulps.mean()),
        0.0 if ratio <= 1 else float(np.count_nonzero(ratios > 1) / ratios.size),
    )
    if verdict.status == PASS:
        return verdict
    flushed = _flushed(result, magnitude, ratios > 1, of)
    if flushed:
        return replace(verdict, status=SUSPECT, interpretation=flushed)
    if verdict.status == SUSPECT and not of.is_complex and unit >= LEAST_UNIT and error.size >= LEAST_BIASED:
        status = _status_of_factor(_common_factor(subject, bound, of, unit, beyond), unit)
        verdict = replace(verdict, status=status)
    words, explains = interpretation.on_numbers(subject, result, reference, distance, allowed, of)
    fitting = interpretation.stored_or_rounded(subject, result, reference, distance, allowed, of, unit)
    if fitting is None and not explains:
        fitting = interpretation.accumulated(subject, reference, distance, bound, of, unit)
    return replace(verdict, fits=fitting, interpretation=words)


def _flushed(result: Array, magnitude: Array, over: Array, of: Format) -> str | None:
    """The number of subnormal numbers that are zero, as on some devices; ``None`` if anything else is wrong."""
    if not of.may_flush or result[over].any() or (magnitude[over] >= of.smallest_normal).any():
        return None
    return f"{int(np.count_nonzero(over))} of {over.size} numbers below {of.smallest_normal:.2g} are set to zero"


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(flat, shape)))


def _inner(one: Array, other: Array) -> float:
    """The inner product of two vectors. Not with ``@``, whose threads wait for each other thirty times as long."""
    return float(np.einsum("i,i->", one, other))


def _number(value: Any) -> Value:
    number: Value = value.item()
    return number


def _may_be_biased(product: float, square: float, size: int, bound: Bound, unit: float) -> bool:
    """True if the factor that fits the errors best is worth a closer look.

    Args:
        product: the sum over all elements of error times reference, both in units of the tolerance.
        square: the sum of the squares of the reference in that unit.
    """
    if unit < LEAST_UNIT or size < LEAST_BIASED or not square:
        return False
    share = abs(product) / math.sqrt(square * size)
    if bound.unbiased:
        return share > BIAS_OF_KNOWN
    return share > BIAS_OF_OTHERS and abs(product) / square > LEAST_FACTOR_OF_OTHERS * unit


def _has_a_mean(bound: Bound, unit: float, size: int) -> bool:
    """True if the mean error of a correct kernel is known, and worth to be asked for."""
    is_known = bound.kind not in (EXACT_ROUNDING, ROUNDED_ONCE) and bound.sums_in != bounds.HALF
    return is_known and unit >= LEAST_UNIT and size >= LEAST_BIASED


def _larger_than_likely(subject: Subject, bound: Bound, of: Format, unit: float, beyond: Beyond) -> str:
    """The ratio of the average error to that of roundings, in words; empty if chance may be the reason.

    Independent errors have a mean that is off by their deviation by the root of their number. The same number in many
    places has the same error, so that each value of the reference counts once.
    """
    _, reference, error = _differences(subject.result.reshape(-1), subject.reference.reshape(-1), of)
    least = tolerance.least_tolerance(np.abs(reference), reference, bound, of, unit)
    allowed = beyond.over(least)
    _, first = np.unique(reference, return_index=True)
    ratios = (np.abs(error) / allowed)[first]
    likely = float((beyond.likely(least, tolerance.likely_share(bound, unit)) / allowed)[first].mean())
    mean = float(ratios.mean())
    if first.size < LEAST_BIASED or mean <= likely + SIGMAS * float(ratios.std()) / math.sqrt(first.size):
        return ""
    return f"the mean error is {mean / likely:.2g} times as large as roundings make it at most"


def _common_factor(subject: Subject, bound: Bound, of: Format, unit: float, beyond: Beyond) -> float:
    """By how much all elements are too large, as a part of them; 0 where that is no more than roundings make.

    The factor is fitted by least squares to the errors in units of the tolerance; its deviation is the one that
    independent errors of different sizes have (H. White, Econometrica 48, 1980). The same number in many places has the
    same error, so that each value of the reference counts once.
    """
    _, reference, error = _differences(subject.result.reshape(-1), subject.reference.reshape(-1), of)
    allowed = beyond.over(tolerance.least_tolerance(np.abs(reference), reference, bound, of, unit))
    scaled, sizes = error / allowed, reference / allowed
    product, square = _inner(scaled, sizes), _inner(sizes, sizes)
    _, first = np.unique(reference, return_index=True)
    products = scaled[first] * sizes[first]
    deviation = math.sqrt(_inner(products, products))
    return product / square if abs(float(products.sum())) > SIGMAS * deviation else 0.0


def _biased(verdict: KernelVerdict, factor: float, unit: float) -> KernelVerdict:
    """The verdict on a result whose elements all pass, but have a factor in common."""
    words = f"the elements are {interpretation.percent(factor)} too {'high' if factor > 0 else 'low'} on average: scale"
    return replace(verdict, status=_status_of_factor(factor, unit), interpretation=words)


def _status_of_factor(factor: float, unit: float) -> str:
    """One element may be that far off by chance, but not all of them in one direction."""
    return ERROR if abs(factor) > tolerance.ROUNDINGS * unit else SUSPECT


def _overflows_inside(result: Array, reference: Array, of: Format) -> Array:
    """A mask of numbers close to the largest one that have become infinite, as when e^x is divided by 2 for sinh."""
    is_near = np.abs(reference) >= of.largest / NEAR_OVERFLOW
    return np.asarray(np.isinf(result) & is_near & (np.sign(result) == np.sign(reference)))


def _is_beside(too_large: Array) -> Array:
    """The elements of matrices in which a number overflows: what is made of whole matrices, it may be part of."""
    return np.broadcast_to(too_large.any((-2, -1), keepdims=True), too_large.shape) if too_large.ndim > 1 else too_large


def _nonfinite(result: Array, reference: Array, bound: Bound, of: Format) -> KernelVerdict | None:
    """The verdict if NaN or infinity stands where the reference does not give it, or the other way round."""
    nan, reference_nan = np.isnan(result), np.isnan(reference)
    # Close to the largest number of the dtype either is right.
    limit = of.overflow * (1 - 4 * tolerance.ROUNDINGS * of.unit)
    if of.is_complex:
        too_large = np.maximum(np.abs(reference.real), np.abs(reference.imag)) >= limit
        # A product of what is infinite is the difference of two infinities.
        agrees = (nan & reference_nan) | ((np.isinf(result) | nan) & too_large)
    else:
        too_large = np.abs(reference) >= limit
        agrees = (nan & reference_nan) | (np.isinf(result) & too_large & (np.sign(result) == np.sign(reference)))
        if not of.has_infinity:
            agrees |= too_large & (nan | (np.abs(result) == of.largest))
    wrong = ~(np.isfinite(result) & np.isfinite(reference)) & ~agrees
    if not wrong.any():
        return None
    if bound.by_norm and not (wrong & ~_is_beside(too_large)).any():
        largest = float(np.abs(reference[np.isfinite(reference)]).max(initial=0.0))
        return KernelVerdict(NOT_RUN, f"it cannot be judged: exact results reach {largest:.2g}, which overflows")
    first = np.unravel_index(int(wrong.argmax()), wrong.shape)
    words = interpretation.on_nonfinite(result, reference, wrong)
    is_near = not of.is_complex and bool(_overflows_inside(result, reference, of)[wrong].all())
    return KernelVerdict(
        SUSPECT if is_near else NONFINITE,
        f"{words}: what is multiplied inside may overflow" if is_near else words,
        str(bound),
        math.inf,
        None,
        tuple(map(int, first)),
        _number(result[first]),
        _number(reference[first]),
        share_over=float(np.count_nonzero(wrong) / wrong.size),
    )
