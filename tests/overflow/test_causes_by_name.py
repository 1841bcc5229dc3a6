"""The sentence on why a call made what is not finite is that of its function, by any of its names."""

from __future__ import annotations

import pytest

from probe.common.dump.reading.items import Item
from probe.common.nonfinite.call_values import CallValues
from probe.overflow.causes import why, why_backward


def values(largest: float, smallest: float) -> CallValues:
    item = Item("x", "input", dtype="torch.float32", shape=(2,), max=largest, min=smallest, mean=0.0, norm=1.0)
    return CallValues([item, item], [], [], [])


@pytest.mark.parametrize("name", ["div", "div_", "divide_", "__itruediv__", "__ifloordiv__", "RealDiv", "true_divide_"])
def test_a_division_by_zero_is_explained(name: str) -> None:
    assert "divisors are 0" in str(why(name, values(0.0, 0.0)))


@pytest.mark.parametrize(("name", "text"), [("arccos_", "arc cosine"), ("Log", "logarithm"), ("Sqrt", "square root")])
def test_a_value_outside_of_the_domain_is_explained(name: str, text: str) -> None:
    assert text in str(why(name, values(2.0, -2.0)))


@pytest.mark.parametrize("name", ["log", "log_", "Log"])
def test_a_gradient_is_explained(name: str) -> None:
    assert "slope of the logarithm" in str(why_backward(name, values(0.0, 0.0), values(1.0, 1.0)))
