"""Conditions on items: what they mean, and that nothing else is taken for one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from probe.common.dump.reading.items import Item
from probe.common.dump.reading.selected_items import ALLOWED, condition
from probe.common.errors import MsprobeException

NAN, INF = math.nan, math.inf


def tensor(**fields: Any) -> Item:
    plain: dict[str, Any] = {"dtype": "torch.float16", "shape": (8, 64), "max": 3.0, "min": -4.0, "mean": 0.5}
    return Item("Functional.relu.0.forward.output.0", "output", **{**plain, "norm": 9, **fields})


def value(content: Any) -> Item:
    return Item("Functional.relu.0.forward.input.p", "input", str(type(content)), (), *[content] * 4, value=content)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Max > 2", True),
        ("max > 3", False),
        ("Max >= 3 and Min < 0", True),
        ("Max > 3 or not Mean > 1", True),
        ("-5 < Min < -3", True),
        ("abs(Min) > abs(Max)", True),
        ("(Max - Min) / 2 == 3.5", True),
        ("Max > 1e4 or nan", False),
        ("Max < inf", True),
        ("nan or inf", False),
        ("elements == 512", True),
        ("64 in shape", True),
        ("63 not in shape", True),
        ("shape == (8, 64)", True),
        ("shape != [8, 64]", False),
        ('dtype == "float16"', True),
        ('dtype == "torch.float16"', True),
        ('dtype in ("bfloat16", "Float16")', True),
        ('"float" in dtype', True),
        ('dtype == "float32"', False),
        ('state == "output"', True),
        ('"relu" in name and state in ["output", "input"]', True),
        ("Max / 0 > 1", False),
    ],
)
def test_a_condition_means_what_python_would(text: str, expected: bool) -> None:
    assert condition(text)(tensor()) is expected


@pytest.mark.parametrize(
    ("fields", "nan", "inf"),
    [
        ({"max": NAN, "min": NAN, "mean": NAN, "norm": NAN}, True, False),
        ({"max": INF, "mean": INF, "norm": INF}, False, True),
        # The mean of both infinities is NaN, and there is no NaN among the elements.
        ({"max": INF, "min": -INF, "mean": NAN, "norm": INF}, False, True),
        # Two float16 values of 60000 have this norm.
        ({"max": 6e4, "norm": INF}, False, False),
        ({"mean": NAN}, True, False),
    ],
)
def test_nan_and_inf_tell_what_is_in_the_tensor(fields: dict[str, Any], nan: bool, inf: bool) -> None:
    item = tensor(**fields)
    assert (condition("nan")(item), condition("inf")(item)) == (nan, inf)
    assert condition("Mean == nan")(item) is math.isnan(fields.get("mean", 0.5))
    assert condition("Norm == inf")(item) is (fields.get("norm") == INF)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a condition"),
        ("Max >", "not a condition"),
        ("Max > 1; print(1)", "not a condition"),
        ("Maxx > 1", '"Maxx" is not known'),
        ("Max", '"Max" is a number and not a condition'),
        ("3", '"3" is a number and not a condition'),
        ("Max > 'a'", "a number and a text"),
        ("shape > 3", "a shape and a number"),
        ("Max in shape in shape", "a shape and a shape"),
        ("value is 3", "write =="),
        ("value == None", '"None" is not allowed'),
        ("'a' * 9 == 'b'", "not a number to compute with"),
        ("9 ** 9 ** 9 > Max", "is not allowed here"),
        ("__import__('os').remove('x')", "is not allowed here"),
        ("Max.__class__ == 3", "is not allowed here"),
        ("abs(Max, 3) > 1", "is not allowed here"),
        ("[x for x in 'abc'] == 3", "is not allowed here"),
        ("(lambda: 1) == 1", "is not allowed here"),
        ("f'{Max}' == '3'", "is not allowed here"),
        ("dtype in (Max, 3)", "a list holds numbers and texts"),
        ("not " * 400 + "nan", "too many parts"),
        ("(" * 900 + "nan" + ")" * 900, "not a condition"),
        ("nan or " * 1000 + "nan", "not a condition"),
        ("Max > 1\0", "not a condition"),
    ],
)
def test_anything_else_is_one_error_that_names_what_is_allowed(text: str, reason: str) -> None:
    with pytest.raises(MsprobeException) as caught:
        condition(text)
    said = str(caught.value)
    assert reason in said and ALLOWED in said and "\n" not in said and len(said) < 500
