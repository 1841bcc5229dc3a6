"""One sentence on why a call made what is not finite of finite values, from its name and the extremes of its inputs.

The extremes tell what can have happened, seldom where in the tensor: a sentence says "may" where they leave it open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Optional

from probe.common.dump.reading.records import Item
from probe.common.nonfinite.call_values import CallValues, is_number, limit_of
from probe.common.operations.lookup import function as known

Explain = Callable[[CallValues], Optional[str]]


def why(function: str, values: CallValues) -> str | None:
    """The cause of a forward call's output, from its inputs.

    Args:
        function: the name of the API without prefix and number: ``log``.
        values: its tensors.
    """
    explain = _FORWARD.get(known(function).name)
    found = explain(values) if explain is not None else None
    return found or _beyond_type(values) or _of_arguments(values)


def why_backward(function: str, forward: CallValues, values: CallValues) -> str | None:
    """The cause of a call's gradients, from the inputs of the forward call.

    Args:
        function: the name of the API without prefix and number.
        forward: the tensors of the forward call.
        values: those of its backward.
    """
    explain = _BACKWARD.get(known(function).name)
    found = explain(forward) if explain is not None else None
    return found or _beyond_type(values)


# --- what the tests of inputs are


def _first(values: CallValues) -> Item | None:
    return next((item for item in values.inputs if is_number(item.max) and is_number(item.min)), None)


def _last(values: CallValues) -> Item | None:
    found = [item for item in values.inputs if is_number(item.max) and is_number(item.min)]
    return found[-1] if len(found) > 1 else None


def _below(limit: float, text: str) -> Explain:
    def explain(values: CallValues) -> str | None:
        item = _first(values)
        return None if item is None or item.min >= limit else f"the smallest input is {number(item.min)}; {text}"

    return explain


def _not_above(limit: float, text: str) -> Explain:
    def explain(values: CallValues) -> str | None:
        item = _first(values)
        return None if item is None or item.min > limit else f"the smallest input is {number(item.min)}; {text}"

    return explain


def _outside(low: float, high: float, text: str) -> Explain:
    def explain(values: CallValues) -> str | None:
        item = _first(values)
        if item is None or (item.min >= low and item.max <= high):
            return None
        return f"the inputs reach from {number(item.min)} to {number(item.max)}; {text}"

    return explain


def _exponential(values: CallValues) -> str | None:
    item, limit = _first(values), _limit(values)
    if item is None or limit is None or item.max <= math.log(limit):
        return None
    return (
        f"the largest input is {number(item.max)}, and the exponential of more than {number(math.log(limit))} is "
        f"beyond the largest number of {_type(values)}, {number(limit)}"
    )


def _division(values: CallValues) -> str | None:
    divisor = _last(values)
    if divisor is None:
        zero = 0 in values.numbers
        return "it divides by the number 0" if zero else None
    if divisor.min == divisor.max == 0:
        dividend = _first(values)
        if dividend is not None and dividend.min <= 0 <= dividend.max:
            return "all divisors are 0: 0 / 0 is NaN, any other number / 0 is infinity"
        return "all divisors are 0"
    if divisor.min <= 0 <= divisor.max:
        return f"the divisors reach from {number(divisor.min)} to {number(divisor.max)}; one of them may be 0"
    return None


def _reciprocal(values: CallValues) -> str | None:
    item = _first(values)
    if item is None or not item.min <= 0 <= item.max:
        return None
    return f"the inputs reach from {number(item.min)} to {number(item.max)}; one of them may be 0"


def _rows(values: CallValues) -> str | None:
    masked = next((item for item in values.inputs if item.min == -math.inf), None)
    if masked is None:
        return None
    if masked.max == -math.inf:
        return "all inputs are minus infinity: everything is masked"
    return "an input contains minus infinity: a fully masked row gives a NaN"


def _mean_of_nothing(values: CallValues) -> str | None:
    if any(0 in (item.shape or ()) for item in values.inputs):
        return "the input is empty, and the mean of no elements is NaN"
    return None


def _one_sample(values: CallValues) -> str | None:
    found = _mean_of_nothing(values)
    if found is None and any(1 in (item.shape or ()) for item in values.inputs):
        return "the input has one value along a dimension, and the variance of one sample is 0 / 0"
    return found


def _nothing_to_average(values: CallValues) -> str | None:
    ignored = [item for item in values.inputs if item.min == item.max == -100]
    return "all targets are ignored (-100), and the mean of no losses is NaN" if ignored else _mean_of_nothing(values)


def _zero_norm(values: CallValues) -> str | None:
    item = _first(values)
    if item is None or not is_number(item.norm) or item.norm != 0:
        return None
    return "the norm of the input is 0, and the gradient divides by the norm"


def _zero_in(text: str) -> Explain:
    def explain(values: CallValues) -> str | None:
        item = _first(values)
        if item is None or not item.min <= 0 <= item.max:
            return None
        where = "the forward input is 0" if item.min == item.max else "the smallest forward input is 0"
        if item.min < 0:
            where = f"the forward inputs reach from {number(item.min)} to {number(item.max)}, and may be 0"
        return f"{where}; {text}"

    return explain


def _power(values: CallValues) -> str | None:
    item = _first(values)
    if item is None:
        return None
    exponent = next(iter(values.numbers), None)
    if exponent is not None and exponent < 0 and item.min <= 0 <= item.max:
        return f"an input may be 0, and the power is {number(exponent)}"
    if item.min < 0 and (exponent is None or not float(exponent).is_integer()):
        return f"the smallest input is {number(item.min)}; a fractional power of a negative number is not real"
    return None


def _square(values: CallValues) -> str | None:
    item, limit = _first(values), _limit(values)
    if item is None or limit is None or _largest(item) <= math.sqrt(limit):
        return None
    return (
        f"the largest input is {number(_largest(item))}, whose square is beyond the largest number of "
        f"{_type(values)}, {number(limit)}"
    )


def _negative_variance(values: CallValues) -> str | None:
    found = [item for item in values.inputs[2:3] if is_number(item.min) and item.min < 0]
    return f"the smallest running variance is {number(found[0].min)}; it has no real square root" if found else None


_LOGARITHM = _not_above(0, "the logarithm of 0 is minus infinity, and that of a negative number is NaN")
_ROOT = _below(0, "a negative number has no real square root")
_INVERSE_ROOT = _not_above(0, "1 / sqrt(0) is infinity, and a negative number has no real root")

# By the names of the table of functions, which has the others.
_FORWARD: dict[str, Explain] = {
    "log": _LOGARITHM, "log2": _LOGARITHM, "log10": _LOGARITHM,
    "log1p": _not_above(-1, "log(1 + x) is minus infinity at -1, below it a NaN"),
    "sqrt": _ROOT, "rsqrt": _INVERSE_ROOT,
    "exp": _exponential, "exp2": _exponential, "expm1": _exponential, "sinh": _exponential, "cosh": _exponential,
    "div": _division, "rtruediv": _division, "floor_divide": _division, "remainder": _division, "fmod": _division,
    "reciprocal": _reciprocal, "square": _square, "batch_norm": _negative_variance,
    "softmax": _rows, "log_softmax": _rows, "scaled_dot_product_attention": _rows, "baddbmm": _rows,
    "mean": _mean_of_nothing, "nanmean": _mean_of_nothing, "var": _one_sample, "std": _one_sample,
    "var_mean": _one_sample, "std_mean": _one_sample,
    "cross_entropy": _nothing_to_average, "nll_loss": _nothing_to_average,
    "pow": _power, "acos": _outside(-1, 1, "the arc cosine is a NaN beyond -1 and 1"),
    "asin": _outside(-1, 1, "the arc sine is a NaN beyond -1 and 1"),
    "atanh": _outside(-0.9999999, 0.9999999, "it is infinite at -1 and 1, and a NaN beyond"),
    "acosh": _below(1, "it is a NaN below 1"),
    "erfinv": _outside(-0.9999999, 0.9999999, "it is infinite at -1 and 1, and a NaN beyond"),
    "logit": _outside(0, 1, "it is a NaN beyond 0 and 1"),
}  # fmt: skip
_BACKWARD: dict[str, Explain] = {
    "sqrt": _zero_in("the slope of the square root is infinite there"),
    "rsqrt": _zero_in("the slope of 1 / sqrt is infinite there"),
    "log": _zero_in("the slope of the logarithm is infinite there"),
    "norm": _zero_norm, "vector_norm": _zero_norm, "cdist": _zero_norm, "dist": _zero_norm,
    "pow": _zero_in("the slope of a power below 1 is infinite there"),
    "std": _zero_in("the slope of the standard deviation is infinite where it is 0"),
    "div": _division, "reciprocal": _reciprocal,
    "softmax": _rows, "log_softmax": _rows,
    "acos": _outside(-0.9999999, 0.9999999, "the slope is infinite at -1 and 1"),
    "asin": _outside(-0.9999999, 0.9999999, "the slope is infinite at -1 and 1"),
    "atan2": _zero_in("the angle of (0, 0) has no slope"),
}  # fmt: skip


# --- of any call


def _beyond_type(values: CallValues) -> str | None:
    """True if what the values are multiplied or added to may be beyond the range of the type."""
    limit = _limit(values)
    largest = [_largest(item) for item in (*values.inputs, *values.parameters)]
    if limit is None or not largest:
        return None
    biggest = max(largest)
    narrowed = next((_type_of(item) for item in values.outputs if (own := limit_of(item)) and biggest > own), None)
    if narrowed is not None:
        return f"the largest input is {number(biggest)}, beyond the largest number of {narrowed}, {number(limit)}"
    longest = max((math.prod(item.shape or ()) for item in values.inputs), default=1)
    others = sorted((*largest, *(abs(each) for each in values.numbers if is_number(each))))[:-1]
    # Sums of products are what grows fastest; a bound, for where the large values lie is not known.
    if biggest * max(1.0, *others[-1:], math.sqrt(min(longest, 1 << 1000))) > limit:
        return (
            f"the largest input is {number(biggest)}; a result computed from {longest} values can exceed the largest "
            f"number of {_type(values)}, {number(limit)}"
        )
    return None


def _of_arguments(values: CallValues) -> str | None:
    odd = next((value for value in values.numbers if not math.isfinite(value)), None)
    return None if odd is None else f"its argument is {number(odd)}"


def _largest(item: Item) -> float:
    found = [abs(value) for value in (item.max, item.min) if is_number(value)]
    return float(max(found, default=0.0))


def _limit(values: CallValues) -> float | None:
    limits = [limit for item in values.outputs if (limit := limit_of(item)) is not None]
    return min(limits, default=None)


def _type(values: CallValues) -> str:
    typed = [(limit, item) for item in values.outputs if (limit := limit_of(item)) is not None]
    return _type_of(min(typed, key=lambda pair: pair[0])[1]) if typed else ""


def _type_of(item: Item) -> str:
    return item.dtype or ""


def number(value: float) -> str:
    """A number with four digits."""
    return f"{value:.4g}"
