"""The reason why a call made what is not finite is the arithmetic of its function, by any of its names."""

from __future__ import annotations

import math

import pytest

from probe.common.dump.reading.items import Item
from probe.overflow.causes import why, why_backward


def tensor(name: str, low: float, high: float, dtype: str = "float32", size: int = 2) -> Item:
    state = "output" if "output" in name else "input"
    return Item(f"x.{name}", state, dtype=f"torch.{dtype}", shape=(size,), max=high, min=low, mean=0.0, norm=1.0)


def reason(name: str, *given: tuple[float, float], result: float = math.nan, dtype: str = "float32") -> str:
    items = [tensor(f"forward.input.{place}", *each, dtype) for place, each in enumerate(given)]
    return str(why(name, [*items, tensor("forward.output.0", result, result, dtype)]))


@pytest.mark.parametrize("name", ["div", "div_", "divide_", "__itruediv__", "__ifloordiv__", "RealDiv", "true_divide_"])
def test_a_division_by_zero_is_explained(name: str) -> None:
    assert reason(name, (0, 0), (0, 0)).startswith("0 / 0 is NaN")
    assert reason(name, (1, 2), (0, 0), result=math.inf).startswith("1 / 0 is inf")


@pytest.mark.parametrize(
    ("name", "text", "undefined"),
    [
        ("arccos_", "acos(-2)", "numbers below -1 or above 1"),
        ("arcsin", "asin(-2)", "numbers below -1 or above 1"),
        ("arctanh", "atanh(-2)", "numbers below -1 or above 1"),
        ("special_erfinv", "erfinv(-2)", "numbers below -1 or above 1"),
        ("arccosh_", "acosh(-2)", "numbers below 1"),
        ("special_log1p", "log1p(-2)", "numbers below -1"),
        ("logit", "logit(-2)", "numbers below 0 or above 1"),
        ("Log", "log(-2)", "negative numbers"),
        ("Sqrt", "sqrt(-2)", "negative numbers"),
    ],
)
def test_a_value_outside_of_the_domain_is_explained(name: str, text: str, undefined: str) -> None:
    result = reason(name, (-2, 2)).replace("erfinv_", "erfinv")
    assert result == f"{text} is NaN, not defined for {undefined}; input.0 is from -2 to 2"


def test_two_arguments_outside_of_the_domain_are_explained() -> None:
    assert reason("float_power", (-2, 3), (0.25, 0.25)).startswith(
        "(-2) ** 0.25 is NaN, not defined for a negative number with an exponent that is not whole"
    )
    assert reason("fmod", (5, 6), (0, 0)).startswith("5 % 0 is NaN, not defined for a divisor of 0")


@pytest.mark.parametrize("name", ["linear", "bmm", "matmul", "conv2d", "einsum", "__matmul__", "addmm"])
def test_a_zero_between_the_extremes_does_not_explain_a_nan_of_a_product(name: str) -> None:
    bias = [(1, 2)] if name == "addmm" else []
    found = product(name, *bias, (3, math.inf), (-4, 7))
    assert "inf - inf is NaN in the sum of products" in found and "0" not in found.replace("input.0", "")
    assert product(name, *bias, (-math.inf, -3), (0, 7)).startswith("-inf times 0 is NaN")
    both = product(name, *bias, (-math.inf, math.inf), (0, 7))
    assert both.index("times 0") < both.index("inf - inf")


def product(name: str, *given: tuple[float, float]) -> str:
    items = [tensor(f"forward.input.{place}", *each, size=6) for place, each in enumerate(given)]
    return str(why(name, [*items, tensor("forward.output.0", math.nan, math.nan, size=1)]))


def test_the_reason_of_a_gradient_agrees_with_the_record() -> None:
    forward = [tensor("forward.input.0", 0.0, 4.0)]
    given = tensor("backward.input.0", -1.0, 1.0)
    infinite = str(why_backward("sqrt", forward, [given, tensor("backward.output.0", -math.inf, math.inf)]))
    assert infinite == "the slope of sqrt is infinite (sqrt(0) in the forward), and the gradient there is not 0"
    nan = str(why_backward("sqrt", forward, [given, tensor("backward.output.0", math.nan, math.nan)]))
    assert nan.endswith("(sqrt(0) in the forward): a gradient of 0 times inf is NaN")


def test_a_pole_has_the_sign_that_the_record_shows() -> None:
    assert reason("div", (1, 2), (0, 0), result=-math.inf).startswith("1 / -0 is -inf")
    assert reason("div", (-3, 2), (0, 0), result=math.inf).startswith("2 / 0 is inf")


def test_a_record_without_nan_has_no_reason_for_one() -> None:
    assert reason("matmul", (0, 1), (-math.inf, 1), result=-math.inf) == "None"


@pytest.mark.parametrize("name", ["log", "log_", "Log"])
def test_a_gradient_is_explained(name: str) -> None:
    forward = [tensor("forward.input.0", 0.0, 0.0)]
    of_zero = [tensor("backward.input.0", 0.0, 1.0), tensor("backward.output.0", math.nan, math.nan)]
    found = str(why_backward(name, forward, of_zero))
    assert "slope of log is infinite (log(0) in the forward)" in found and "0 times inf is NaN" in found


def test_a_number_beyond_the_range_has_its_size() -> None:
    assert "90,000, beyond the range of float16 (65,504)" in reason(
        "mul", (300, 300), (300, 300), result=math.inf, dtype="float16"
    )
    assert "1e+15" not in reason("mul", (300, 300), (300, 300), result=math.inf, dtype="float32")


@pytest.mark.parametrize(
    ("name", "text"), [("mul", "0 times -inf"), ("matmul", "0 times -inf"), ("softmax", "-inf - -inf")]
)
def test_what_is_computed_of_masks_is_explained(name: str, text: str) -> None:
    assert text in reason(name, (0, 1), (-math.inf, 1)) or text in reason(name, (-math.inf, 1))


def test_a_variance_is_negative_only_where_it_is_given() -> None:
    assert "variance" not in reason("layer_norm", (0, 1), (-math.inf, 1))
    assert reason("batch_norm", (0, 1), (0, 1), (-1, 2)) == (
        "the running variance is negative, and its root is NaN: input.2 is from -1 to 2"
    )


def test_an_unknown_function_has_no_reason() -> None:
    assert reason("frobnicate", (0, 1)) == "None"
