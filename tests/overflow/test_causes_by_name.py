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


@pytest.mark.parametrize(("name", "text"), [("arccos_", "acos(-2)"), ("Log", "log(-2)"), ("Sqrt", "sqrt(-2)")])
def test_a_value_outside_of_the_domain_is_explained(name: str, text: str) -> None:
    assert reason(name, (-2, 2)) == f"{text} is NaN, not defined for negative numbers; input.0 is from -2 to 2"


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
    assert reason("batch_norm", (0, 1), (0, 1), (-1, 2)) == "the running variance is negative: input.2 is from -1 to 2"


def test_an_unknown_function_has_no_reason() -> None:
    assert reason("frobnicate", (0, 1)) == "None"
