"""One sentence on the arithmetic by which a call made what is not finite.

IEEE 754 has three exceptions that make a NaN or an infinity of other numbers: an invalid operation (0 * inf, inf - inf,
0 / 0, the square root of a negative number), a division by zero (log of 0 as well) and an overflow. A function is
known here by its elementary arithmetic on one element. It is evaluated at the extremes of what the call was given; the
exception that arises there is the reason. The arithmetic of a backward is the gradient times the slope.

The extremes tell what can have happened, seldom where in the tensor: a number between them may or may not be there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from probe.common.dump.reading.items import INPUT, OUTPUT, PARAMETERS, Item
from probe.common.nonfinite.call_values import infinite_sign, is_nonfinite, is_number, limit_of
from probe.common.operations.function import CONDITIONING, DOT_PRODUCT, Function, Trait
from probe.common.operations.lookup import function as known

_INVALID, _ZERO, _OVERFLOW = "invalid", "zero", "overflow"


class _Operand(NamedTuple):
    """An argument of a call: numbers that are in it, the most extreme first."""

    name: str
    """``input.0``; `gradient` of the gradient of a result."""
    numbers: tuple[float, ...]
    size: int = 1
    last: int = 1
    """The size of the last dimension of the tensor."""
    has_nan: bool = False
    inside: tuple[float, ...] = ()
    """Numbers between the extremes that are not known to be there."""
    may_be_zero: bool = False
    """True if a 0 between the extremes is likely: whole numbers, and gradients, of which masks leave out parts."""


class _Formula(NamedTuple):
    """Arithmetic on one element of each argument."""

    text: str
    value: Callable[..., Any]
    slopes: tuple[Callable[..., Any], ...] = ()
    """The derivative for each argument."""
    undefined: str = "such numbers"
    """The numbers that it is not defined for."""


def _of(text: str, value: Callable[..., Any], *slopes: Callable[..., Any], undefined: str = "such numbers") -> _Formula:
    return _Formula(text, value, slopes, undefined)


def _root(x: Any) -> Any:
    return 1 / np.sqrt(x)


_NEGATIVE, _BEYOND_ONE = "negative numbers", "numbers below -1 or above 1"
_FRACTION = "a negative number with an exponent that is not whole"


_FORMULAS: dict[str, _Formula] = {
    "log": _of("log({0})", np.log, lambda x: 1 / x, undefined=_NEGATIVE),
    "log2": _of("log2({0})", np.log2, lambda x: 1 / x, undefined=_NEGATIVE),
    "log10": _of("log10({0})", np.log10, lambda x: 1 / x, undefined=_NEGATIVE),
    "log1p": _of("log1p({0})", np.log1p, lambda x: 1 / (1 + x), undefined="numbers below -1"),
    "logit": _of(
        "logit({0})", lambda x: np.log(x) - np.log(1 - x), lambda x: 1 / (x * (1 - x)),
        undefined="numbers below 0 or above 1"),
    "sqrt": _of("sqrt({0})", np.sqrt, lambda x: 0.5 * _root(x), undefined=_NEGATIVE),
    "rsqrt": _of("1 / sqrt({0})", _root, lambda x: -0.5 * _root(x) / x, undefined=_NEGATIVE),
    "exp": _of("exp({0})", np.exp, np.exp),
    "exp2": _of("exp2({0})", np.exp2, np.exp2),
    "expm1": _of("expm1({0})", np.expm1, np.exp),
    "sinh": _of("sinh({0})", np.sinh, np.cosh),
    "cosh": _of("cosh({0})", np.cosh, np.sinh),
    "square": _of("{0} ** 2", np.square, lambda x: 2 * x),
    "reciprocal": _of("1 / {0}", lambda x: 1 / x, lambda x: -1 / np.square(x)),
    "acos": _of("acos({0})", np.arccos, lambda x: _root(1 - x * x), undefined=_BEYOND_ONE),
    "asin": _of("asin({0})", np.arcsin, lambda x: _root(1 - x * x), undefined=_BEYOND_ONE),
    "acosh": _of("acosh({0})", np.arccosh, lambda x: _root(x * x - 1), undefined="numbers below 1"),
    "atanh": _of("atanh({0})", np.arctanh, lambda x: 1 / (1 - x * x), undefined=_BEYOND_ONE),
    # It has the domain and the poles of atanh.
    "erfinv": _of("erfinv({0})", np.arctanh, lambda x: 1 / (1 - x * x), undefined=_BEYOND_ONE),
    "sin": _of("sin({0})", np.sin, np.cos),
    "cos": _of("cos({0})", np.cos, np.sin),
    "tan": _of("tan({0})", np.tan, lambda x: 1 / np.square(np.cos(x))),
    "mul": _of("{0} times {1}", lambda a, b: a * b, lambda a, b: b, lambda a, b: a),
    "add": _of("{0} + {1}", lambda a, b, c=1.0: a + b * c, lambda a, b: 1.0, lambda a, b: 1.0),
    "sub": _of("{0} - {1}", lambda a, b, c=1.0: a - b * c, lambda a, b: 1.0, lambda a, b: -1.0),
    "rsub": _of("{1} - {0}", lambda a, b: b - a, lambda a, b: -1.0, lambda a, b: 1.0),
    "div": _of("{0} / {1}", lambda a, b: a / b, lambda a, b: 1 / b, lambda a, b: a / (b * b)),
    "rtruediv": _of("{1} / {0}", lambda a, b: b / a, lambda a, b: b / (a * a), lambda a, b: 1 / a),
    "pow": _of(
        "{0} ** {1}", np.power, lambda a, b: b * np.power(a, b - 1), lambda a, b: np.power(a, b) * np.log(a),
        undefined=_FRACTION),
    "rpow": _of("{1} ** {0}", lambda a, b: np.power(b, a), undefined=_FRACTION),
    "xlogy": _of(
        "{0} times log({1})", lambda a, b: a * np.log(b) if a else 0.0, lambda a, b: np.log(b), lambda a, b: a / b,
        undefined="negative numbers in a logarithm"),
    "remainder": _of("{0} % {1}", np.fmod, undefined="a divisor of 0"),
    "addcdiv": _of("{1} / {2}", lambda a, b, c, d=1.0: b / c),
    "addcmul": _of("{1} times {2}", lambda a, b, c, d=1.0: a + b * c * d),
    # Its targets, of which the logarithm is known where they are 0, times its input.
    "kl_div": _of("{1} times {0}", lambda a, b: b * a),
}  # fmt: skip
for _name, _same in {
    "floor_divide": "div", "fmod": "remainder", "float_power": "pow",
    **{f"special_{each}": each for each in ("xlogy", "log1p", "logit", "erfinv", "expm1", "exp2")},
}.items():  # fmt: skip
    _FORMULAS[_name] = _FORMULAS[_same]
_SPREADS = ("layer_norm", "group_norm", "instance_norm", "batch_norm", "native_batch_norm")
"""Functions that divide by a standard deviation."""
_SIZES = ("normalize", "rms_norm", "cosine_similarity")
"""Functions that divide by a norm."""
_NORMS = ("norm", "vector_norm", "matrix_norm", "cdist", "dist", "pairwise_distance")
_MEANS = ("mean", "nanmean", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
          "bce_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")  # fmt: skip
_DEVIATIONS = ("var", "std", "var_mean", "std_mean")
_SUMS = ("sum", "nansum", "cumsum", "reduce_sum", "logcumsumexp", "trace")
_PRODUCTS = ("prod", "cumprod")
_MODULES = {
    "LayerNorm": "layer_norm", "GroupNorm": "group_norm", "RMSNorm": "rms_norm", "LogSoftmax": "log_softmax",
    "CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll_loss", "MSELoss": "mse_loss",
}  # fmt: skip
"""The functions of classes whose names in small letters are none."""
_ADDING = ("addmm", "baddbmm", "addbmm", "addmv", "addr")
"""Products that are added to the first argument."""
_IGNORED = "ignore_index"
_CORNERS = 6
"""Numbers of an argument that are tried: both extremes, 0 and the ends of domains."""


# --- what a call was given


def _numbers(item: Item) -> tuple[float, ...]:
    found = [float(each) for each in (item.min, item.max) if _is_float(each) and each == each]
    return tuple(dict.fromkeys(found))


def operands(items: Sequence[Item]) -> list[_Operand]:
    """The tensors and numbers that a call was given, in order; of a module its parameters behind them."""
    return [
        _operand(item) for state in (INPUT, PARAMETERS) for item in items if item.state == state and _is_numeric(item)
    ]


def _is_numeric(item: Item) -> bool:
    return item.is_tensor or (type(item.value) is not bool and _is_float(item.value))


def _is_float(value: Any) -> bool:
    # A whole number may have more digits than any float.
    return type(value) in (float, bool) or is_number(value)


def _operand(item: Item) -> _Operand:
    name = _argument(item)
    if not item.is_tensor:
        return _Operand(name, (float(item.value),), has_nan=item.value != item.value)
    numbers, shape = _numbers(item), item.shape or ()
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, -1.0)
    inside = tuple(each for each in (0.0, 1.0, -1.0) if low < each < high)
    is_whole = limit_of(item) is None
    return _Operand(name, numbers, math.prod(shape), shape[-1] if shape else 1, item.has_nan, inside, is_whole)


def _argument(item: Item) -> str:
    return next(
        (
            f"{state}{rest}"
            for state in (INPUT, OUTPUT)
            for _, found, rest in [item.name.partition(f".{state}")]
            if found
        ),
        item.name,
    )


class _Result(NamedTuple):
    """Dtype, range and size of the results of a call that are not finite."""

    limit: float
    type: str
    has_nan: bool
    size: int
    signs: frozenset[float] = frozenset()
    """The infinities that the record shows."""


def _result(items: Sequence[Item]) -> _Result:
    typed = [(limit, item) for item in items if (limit := limit_of(item)) is not None]
    limit, item = min(typed, key=lambda pair: pair[0]) if typed else (math.inf, None)
    name = "" if item is None else (item.dtype or "").rpartition(".")[2]
    signs = frozenset(number for each in items for number in _numbers(each) if math.isinf(number))
    size = math.prod(item.shape or ()) if item else 1
    return _Result(limit, name.lower(), any(each.has_nan for each in items), size, signs)


def _agreeing(reasons: Iterator[str], result: _Result, bad: Sequence[Item]) -> str | None:
    """The first reason that ends in what the record shows: in a NaN, or in infinities alone.

    Sums beyond the range of a type make a NaN as well, if no reason for one is there.
    """
    found = list(reasons)
    agreeing = [reason for reason in found if ("NaN" in reason) == result.has_nan or not bad]
    return next(iter([*agreeing, *(found if result.has_nan else ())]), None)


# --- the exceptions


def _evaluate(formula: Callable[..., Any], numbers: Sequence[float], limit: float) -> tuple[str, float]:
    """The exception that `formula` raises, empty for none, and its value."""
    values = [np.float64(number) for number in numbers]
    with np.errstate(all="ignore"):
        value = float(formula(*values))
    with np.errstate(divide="raise", over="raise", invalid="raise", under="ignore"):
        try:
            formula(*values)
        except FloatingPointError as error:
            text = str(error)
            return (_INVALID if "invalid" in text else _ZERO if "divide" in text else _OVERFLOW), value
        except ZeroDivisionError:
            return _ZERO, value
    # What rounds to a number beyond the largest one is infinite: half a unit behind it, of which 1e-4 is enough here.
    return (_OVERFLOW if limit < abs(value) < math.inf else ""), value


class _Raised(NamedTuple):
    kind: str
    value: float
    numbers: tuple[float, ...]
    is_sure: bool


def _raised(formula: Callable[..., Any], given: Sequence[_Operand], result: _Result) -> _Raised | None:
    """The exception that explains a result best, at numbers that are there or may be there."""
    order = (_INVALID, _ZERO, _OVERFLOW) if result.has_nan else (_ZERO, _OVERFLOW, _INVALID)
    best: tuple[tuple[int, bool, bool, bool, float], _Raised] | None = None
    choices = [(*each.numbers, *each.inside)[:_CORNERS] for each in given]
    # A pole has the sign of its 0, which extremes do not show.
    choices = [(*each, -0.0) if 0.0 in each else each for each in choices]
    if not all(choices):
        return None
    for numbers in itertools.product(*choices):
        kind, value = _evaluate(formula, numbers, result.limit)
        if kind:
            is_sure = all(number in each.numbers for number, each in zip(numbers, given))
            is_negative_zero = any(number == 0 and math.copysign(1, number) < 0 for number in numbers)
            other = bool(result.signs) and math.copysign(math.inf, value) not in result.signs
            size = -abs(value) if math.isfinite(value) else 0.0
            rank = (order.index(kind), other, is_negative_zero, not is_sure, size)
            if best is None or rank < best[0]:
                best = rank, _Raised(kind, value, numbers, is_sure)
    return None if best is None else best[1]


def number(value: float) -> str:
    """A number with four digits."""
    return f"{value:.4g}"


def beyond_range(value: float, limit: float, dtype: str) -> str:
    """The end of a sentence on a number beyond the range of a dtype."""
    largest = f"{limit:,.0f}" if 1e3 < limit < 1e7 else number(limit)
    size = f"{value:,.0f}" if 1e4 < abs(value) < 1e9 else number(value)
    return f"{size}, beyond the range of {dtype.rpartition('.')[2].lower()} ({largest})"


def _size(value: float, result: _Result) -> str:
    return beyond_range(value, result.limit, result.type)


def _filled(text: str, numbers: Sequence[float]) -> str:
    """An expression with its numbers; a power of a negative one needs brackets."""
    return text.format(*(f"({number(each)})" if each < 0 and "**" in text else number(each) for each in numbers))


def _said(raised: _Raised, formula: _Formula, given: Sequence[_Operand], result: _Result) -> str:
    """The sentence on an exception."""
    expression = _filled(formula.text, raised.numbers)
    may = "" if raised.is_sure else "may be "
    if raised.kind == _OVERFLOW:
        if math.isfinite(raised.value):
            return f"{expression} is {may}{_size(raised.value, result)}"
        return f"{expression} is {may}beyond the range of {result.type} ({number(result.limit)})"
    there, became = ("", "is") if raised.is_sure else ("there may be ", "which is")
    if raised.kind == _ZERO:
        return f"{there}{expression} {became} {number(raised.value)}{_where(raised, given)}"
    if any(map(math.isinf, raised.numbers)) or not any(raised.numbers):
        return f"{there}{expression} {became} NaN{_where(raised, given)}"
    reach = ", ".join(_reach(each) for number_, each in enumerate(given) if not number_ or each.size > 1)
    return f"{there}{expression} {became} NaN, not defined for {formula.undefined}; {reach}"


def _reach(given: _Operand) -> str:
    low, high = min(given.numbers), max(given.numbers)
    return f"{given.name} is {number(low)}" if low == high else f"{given.name} is from {number(low)} to {number(high)}"


def _where(raised: _Raised, given: Sequence[_Operand]) -> str:
    """The arguments in which a 0 or an infinity is."""
    odd = [
        f"{each.name} {'has' if value in each.numbers else 'may have'} {number(value or 0.0)}"
        for each, value in zip(given, raised.numbers) if each.size > 1 and (value == 0 or math.isinf(value))
    ]  # fmt: skip
    return f" ({', '.join(dict.fromkeys(odd))})" if odd else ""


# --- a forward call


def why(name: str, items: Sequence[Item]) -> str | None:
    """The reason why the results of a forward call are not finite.

    Args:
        name: the function without prefix and number: ``log``.
        items: everything that is recorded of the call.
    """
    line, given = _line(name), operands(items)
    outputs = [item for item in items if item.state == OUTPUT and item.is_tensor and is_nonfinite(item)]
    result = _result(outputs)
    return _agreeing(_forward(line, given, items, result), result, outputs)


def _line(name: str) -> Function:
    """The line of a function, or of the function of a module's class: ``Linear``, ``LayerNorm``."""
    found = known(name)
    return found if found.traits or found.rounding != CONDITIONING else known(_MODULES.get(name, name.lower()))


def _forward(line: Function, given: list[_Operand], items: Sequence[Item], result: _Result) -> Iterator[str]:
    tensors = [item for item in items if item.state == INPUT and item.is_tensor]
    if line.name in _MEANS and (found := _mean_of_nothing(tensors, given)):
        yield found
    if line.name in _DEVIATIONS and any(not {0, 1}.isdisjoint(item.shape or ()) for item in tensors[:1]):
        yield "the variance of one value is 0 / 0, which is NaN"
    if line.has(Trait.WEIGHS):
        yield from _attended(given, tensors, result)
    elif line.has(Trait.MASKED) and (found := _masked(tensors)):
        yield found
    yield from _by_range(line, given, tensors, result)
    formula = _FORMULAS.get(line.name)
    if formula is not None:
        arguments = _arguments(formula, given)
        raised = _raised(formula.value, arguments, result) if arguments else None
        if raised is not None:
            yield _said(raised, formula, arguments, result)
    if line.rounding == DOT_PRODUCT and len(given) > 1:
        summed = line.summed if line.summed is not None else known(line.akin).summed if line.akin else None
        yield from _product(given[:3] if line.name in _ADDING else given[:2], result, summed)
    may_be_equal = any(len(set(each.numbers)) <= 1 or 0 in each.numbers for each in given[:1])
    if line.name in _SPREADS and may_be_equal and _is_without_eps(given):
        yield "0 / 0 is NaN: the variance is 0, and eps is 0"
    if line.name == "batch_norm" and len(given) > 2 and min(given[2].numbers, default=0.0) < 0:
        yield f"the running variance is negative, and its root is NaN: {_reach(given[2])}"
    if line.name in _SIZES and _is_without_eps(given):
        yield "0 / 0 is NaN: the norm is 0, and eps is 0"
    odd = [each for each in given if any(map(math.isinf, each.numbers)) or each.has_nan]
    if odd and all(each.size == 1 for each in odd):
        yield f"its argument {odd[0].name} is {number(odd[0].numbers[0]) if odd[0].numbers else 'NaN'}"
    cast = max((abs(each) for one in given for each in one.numbers if math.isfinite(each)), default=0.0)
    if cast > result.limit:
        yield f"an input is {_size(cast, result)}"


def _arguments(formula: _Formula, given: list[_Operand]) -> list[_Operand]:
    """The arguments that a formula takes, and the factor of an addition."""
    code = formula.value.__code__ if hasattr(formula.value, "__code__") else None
    most = getattr(formula.value, "nin", 1) if code is None else code.co_argcount
    least = most if code is None else most - len(formula.value.__defaults__ or ())
    return given[:most] if len(given) >= least else []


def _is_without_eps(given: Sequence[_Operand]) -> bool:
    numbers = [each.numbers[0] for each in given if each.size == 1 and each.numbers]
    return 0.0 in numbers


def _mean_of_nothing(tensors: Sequence[Item], given: Sequence[_Operand]) -> str:
    if any(0 in (item.shape or ()) for item in tensors):
        return "the input is empty, and the mean of no elements is 0 / 0, which is NaN"
    ignored = [each.numbers[0] for each in given if each.name.endswith(_IGNORED) and each.numbers] or [-100.0]
    if any(item.min == item.max and item.min == ignored[0] for item in tensors[1:2]):
        return f"all targets are ignored ({number(ignored[0])}), and the mean of no losses is 0 / 0, which is NaN"
    return ""


def _attended(given: Sequence[_Operand], tensors: Sequence[Item], result: _Result) -> Iterator[str]:
    """Attention: the mask, the values times their weights, the queries times the keys."""
    yield from filter(None, [_masked(tensors[3:])])
    infinite = [each for value in given[2:3] for each in value.numbers if math.isinf(each)]
    if len(infinite) == 2:
        yield f"inf - inf is NaN in the sum of products ({given[2].name} has both infinities)"
    elif infinite:
        yield f"where a weight is 0, 0 times {number(infinite[0])} is NaN ({given[2].name} has {number(infinite[0])})"
    yield from _product(given[:2], result) if len(given) > 1 else ()
    yield from filter(None, [_masked(tensors[:2])])


def _masked(tensors: Sequence[Item]) -> str:
    for item in tensors:
        if item.max == -math.inf:
            return "all inputs are -inf: everything is masked, and -inf - -inf is NaN"
        if item.min == -math.inf and item.max == item.max:
            return "the input has -inf; in a row of which all elements are masked, -inf - -inf is NaN"
    if any(item.max == math.inf for item in tensors):
        return "the input has inf, and inf - inf is NaN"
    return ""


def _by_range(line: Function, given: list[_Operand], tensors: Sequence[Item], result: _Result) -> Iterator[str]:
    """Sums and products of many elements."""
    if not given or not tensors:
        return
    first = given[0]
    largest = max(map(abs, first.numbers), default=0.0)
    count = max(first.last if line.name.startswith("cum") else first.size // max(result.size, 1), 1)
    if math.isinf(largest):
        if line.name in (*_SUMS, "mean") and {math.inf, -math.inf} <= set(first.numbers):
            yield f"inf - inf is NaN: {first.name} has both infinities"
        return
    if line.name in _SUMS and largest * count > result.limit:
        mean = tensors[0].mean
        about = abs(mean) * count if type(mean) is float and math.isfinite(mean) else 0.0
        text = f"the sum of {count} values, each at most {number(largest)}, is"
        yield f"{text} {_size(about, result)}" if about > result.limit else (
            f"{text} up to {_size(largest * count, result)}"
        )  # fmt: skip
    if line.name in _NORMS and largest > math.sqrt(result.limit / count):
        size = _size(largest**2 * count, result)
        yield f"the sum of {count} squares, each at most {number(largest)} ** 2, is up to {size}"
    if line.name in _PRODUCTS and largest > 1 and count * math.log(largest) > math.log(result.limit):
        size = f"1e{count * math.log10(largest):.0f}"
        yield (
            f"the product of {count} values, each at most {number(largest)}, is up to {size}, beyond the range of "
            f"{result.type} ({number(result.limit)})"
        )


def _product(given: Sequence[_Operand], result: _Result, summed: int | None = None) -> Iterator[str]:
    """Sums of products of elements of the last two arguments, over the last dimension of `summed` if it is given."""
    one, other = given[-2:]
    count = max(round(math.sqrt(one.size * other.size / max(result.size, 1))), 1)
    count = count if summed is None else given[summed].last
    largest = [max(map(abs, each.numbers), default=0.0) for each in (one, other)]
    if math.isinf(max(largest)):
        yield from _product_of_infinities(one, other, count, result)
        return
    bound = count * largest[0] * largest[1]
    if bound > result.limit:
        exact = all(len(each.numbers) == 1 for each in (one, other))
        yield (
            f"the sum of {count} products, each at most {number(largest[0])} * {number(largest[1])}, is "
            f"{'' if exact else 'up to '}{_size(bound, result)}"
        )


def _product_of_infinities(one: _Operand, other: _Operand, count: int, result: _Result) -> Iterator[str]:
    """Two reasons for a NaN: 0 times inf, and a sum of infinities of both signs; the likelier one first.

    A 0 that is no extreme of floating-point numbers is seldom there, and both signs are where it may be.
    """
    times = _FORMULAS["mul"]
    raised = _raised(times.value, (one, other), result._replace(limit=math.inf))
    zero = _said(raised, times, (one, other), result) if raised is not None and raised.kind == _INVALID else ""
    signs = {
        math.copysign(1, a) * math.copysign(1, b)
        for a, b in itertools.product(one.numbers, other.numbers) if a and b and math.inf in (abs(a), abs(b))
    }  # fmt: skip
    if len(signs) < 2 or count < 2:
        yield from filter(None, [zero])
        return
    has = ", ".join(f"{each.name} has {_kinds(each)}" for each in (one, other))
    opposite = f"inf - inf is NaN in the sum of products ({has})"
    if raised is not None and zero and raised.is_sure:
        yield f"{zero}, or {opposite}"
    elif zero and (one.may_be_zero or other.may_be_zero):
        yield f"{opposite}, or {zero}"
    else:
        yield opposite


def _kinds(given: _Operand) -> str:
    infinite = " and ".join(number(each) for each in sorted(given.numbers) if math.isinf(each))
    return infinite or ("both signs" if min(given.numbers) < 0 < max(given.numbers) else "one sign")


# --- a backward


def why_backward(name: str, forward: Sequence[Item], items: Sequence[Item]) -> str | None:
    """The reason why gradients of a call are not finite: the gradient of its result times the slope.

    Args:
        name: the function without prefix and number.
        forward: everything that is recorded of the forward call.
        items: everything that is recorded of its backward.
    """
    line, given = _line(name), operands(forward)
    gradients = [each._replace(name="the gradient", may_be_zero=True) for each in operands(items)]
    bad = [item for item in items if item.state == OUTPUT and item.is_tensor and is_nonfinite(item)]
    result = _result(bad)
    index = _index(bad[0]) if bad else 0
    return _agreeing(_backward(line, given, gradients, forward, index, result), result, bad)


def _index(item: Item) -> int:
    text = _argument(item).partition(".")[2].partition(".")[0]
    return int(text) if text.isdigit() else 0


def _backward(
    line: Function,
    given: list[_Operand],
    gradients: list[_Operand],
    forward: Sequence[Item],
    index: int,
    result: _Result,
) -> Iterator[str]:
    results = [item for item in forward if item.state == OUTPUT and item.is_tensor]
    formula = _FORMULAS.get(line.name)
    if any(item.has_nan for item in results) and not any(math.isinf(x) for each in given for x in each.numbers):
        reason = why(line.name, forward)
        yield (
            f"the forward call gave NaN{f' ({reason})' if reason else ''}. A later call, such as where, left it out. "
            "But the backward multiplies the gradient by it, and 0 times NaN is NaN"
        )
    gradient = gradients[0] if gradients else _Operand("the gradient", ())
    if formula is not None and index < len(formula.slopes) and (arguments := _arguments(formula, given)):
        slope, sloped = formula.slopes[index], arguments[: len(formula.slopes)]
        raised = _raised(slope, sloped, result._replace(limit=math.inf, signs=frozenset()))
        if raised is not None and raised.kind == _ZERO:
            made = sorted({each for item in results for each in _numbers(item) if math.isinf(each)})
            yield _infinite_slope(line.name, raised, made, gradient, formula, result)
        factor = _at(slope, sloped)
        product = _raised(lambda a, b: a * b, (gradient, factor), result)
        if product is not None:
            yield _said(product, _FORMULAS["mul"], (gradient, factor), result) + _other_argument(product, sloped, index)
    if line.rounding == DOT_PRODUCT and len(given) > 1:
        both = given[1:3] if line.name in _ADDING else given[:2]
        yield from _product((gradient, both[0] if index else both[1]), result)
    if line.has(Trait.MASKED, Trait.EXPONENTIAL) and any(infinite_sign(item) for item in (*results, *forward)):
        yield "-inf - -inf is NaN: all elements of a row are masked in the forward call"
    if line.name in (*_DEVIATIONS, *_SPREADS):
        yield "0 / 0 is NaN: the deviation of the forward input is 0, and its slope divides by it"
    if line.name in (*_NORMS, *_SIZES):
        yield "0 / 0 is NaN: the norm of the forward input is 0, and its slope divides by it"
    count = max(gradient.size // max(result.size, 1), 1)
    largest = max(map(abs, gradient.numbers), default=0.0)
    if largest * count > result.limit:
        yield f"the sum of {count} gradients, each at most {number(largest)}, is up to {_size(largest * count, result)}"


def _at(slope: Callable[..., Any], given: Sequence[_Operand]) -> _Operand:
    """The numbers that a slope takes."""
    found = []
    with np.errstate(all="ignore"):
        for numbers in itertools.product(*(each.numbers or (math.nan,) for each in given)):
            found.append(float(slope(*map(np.float64, numbers))))
    known_numbers = tuple(dict.fromkeys(each for each in found if each == each))
    return _Operand("the slope", known_numbers, max((each.size for each in given), default=1))


def _infinite_slope(
    name: str, raised: _Raised, made: Sequence[float], gradient: _Operand, formula: _Formula, result: _Result
) -> str:
    gave = f" gave {number(made[0])}, which a later call left out, as masked_fill does" if made else ""
    may = "" if raised.is_sure else "may be "
    text = f"the slope of {name} is {may}infinite ({_filled(formula.text, raised.numbers)} in the forward{gave})"
    if not result.has_nan:
        return f"{text}, and the gradient there is not 0"
    return text + (": a gradient of 0 times inf is NaN" if 0.0 in (*gradient.numbers, *gradient.inside) else "")


def _other_argument(product: _Raised, given: Sequence[_Operand], index: int) -> str:
    """The argument of the forward call that the backward multiplies by, where that is not finite."""
    if not math.isinf(product.numbers[1]):
        return ""
    odd = [each.name for number_, each in enumerate(given) if number_ != index and any(map(math.isinf, each.numbers))]
    return (
        f": the backward multiplies the gradient, 0 where a later call left the value out, by {odd[0]} of the forward "
        "call, which is infinite" if odd else ""
    )  # fmt: skip
