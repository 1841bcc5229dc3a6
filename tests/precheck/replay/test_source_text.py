"""Values as text that Python reads again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from probe.precheck.replay.source_text import Code, call, in_docstring, numbers, source


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -2.5, 1e-30, "mean", 'a "quoted" \\ text', [1, [2.0, None]], (1,), (1, 2), (), {"a": [1]},
        slice(None), slice(1, None, 2), Ellipsis, 1 + 2j, math.inf, -math.inf,
    ],
)  # fmt: skip
def test_a_value_is_read_again(value: Any) -> None:
    assert eval(source(value)) == value


def test_nan_is_read_again() -> None:
    assert math.isnan(eval(source(math.nan)))


def test_names_of_a_dump_are_no_code() -> None:
    name = 'a=1); raise SystemExit("executed") #'
    found: dict[str, Any] = {"f": lambda **kwargs: kwargs}
    exec(call("f", [], {"dim": 0, name: 1, "class": 2}, "output = "), found)
    assert found["output"] == {"dim": 0, name: 1, "class": 2}


@pytest.mark.parametrize("text", ['a""" + b', "\\", "ends with \\", 'quotes "'])
def test_text_ends_no_docstring(text: str) -> None:
    found: dict[str, Any] = {}
    exec(f'"""{in_docstring(text)}"""\nx = 1', found)
    assert found["x"] == 1
    assert found["__doc__"] == text.replace('"', "'")


def test_code_stands_for_itself() -> None:
    assert source([Code("x0"), {"k": Code("x1")}]) == '[x0, {"k": x1}]'


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.bool_])
def test_numbers_come_back_exactly(dtype: Any) -> None:
    seed = np.random.default_rng(3)
    values = (seed.standard_normal((3, 2, 2)) * 100).astype(dtype)
    assert np.array_equal(np.array(eval(numbers(values)), dtype), values)
    assert np.array_equal(np.array(eval(numbers(values[0, 0, 0])), dtype), values[0, 0, 0])


def test_numbers_that_are_not_finite_come_back() -> None:
    values = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert np.array_equal(np.array(eval(numbers(values))), values, equal_nan=True)


def test_a_long_call_is_broken_into_lines() -> None:
    text = call("f", [Code("x0"), list(range(60))], {"mode": "mean"}, "output = ")
    assert all(len(line) <= 120 for line in text.split("\n"))
    found: dict[str, Any] = {"f": lambda *args, **kwargs: (args, kwargs), "x0": 1}
    exec(text, found)
    assert found["output"] == ((1, list(range(60))), {"mode": "mean"})
