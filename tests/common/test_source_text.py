"""Values as text that Python reads again."""

from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np
import pytest

from probe.common.source_text import Code, Unwritable, call, docstring, numbers, source, wrapped


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


# --- texts of which somebody hopes that they are run

HOSTILE = (
    '"""; import os; os.system("x"); """', "'); f(); ('", '"); f(); ("', "a\nf()\n#", "a\rf()\x0c\0\u2028", "# \\",
    '\\"""', '\\\\"""\\', '""""', '"', "\\", "\\N{BULLET} \\x0", "\ud800 \u202e \U0001f600", '" ' + "word " * 60 + "'",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_stays_a_text_wherever_it_stands(text: str) -> None:
    value = {text: [text, (text,), slice(text)]}
    assert ast.literal_eval(source(text)) == text
    assert eval(source(value)) == value
    assert source(text).isprintable()
    assert ast.literal_eval(wrapped(source([text] * 9)).strip()) == [text] * 9


@pytest.mark.parametrize("text", HOSTILE)
def test_a_docstring_ends_where_it_should(text: str) -> None:
    written = f'"""{docstring(text)}\n\n{docstring(text)}\n"""\n'
    (statement,) = ast.parse(written).body
    assert isinstance(statement, ast.Expr)
    assert ast.literal_eval(statement.value) == f"{text}\n\n{text}\n"
    assert docstring(text).isprintable()


def test_an_ordinary_docstring_is_left_as_it_is() -> None:
    text = 'torch.add: Torch.add.0 of a "recorded" run\'s step, 3 % off.'
    assert docstring(text) == text


@pytest.mark.parametrize(
    "name", ["from", "None", "__debug__", "a b", "", "1x", "x=f(), y", "x)\nf(", "\uff46", *HOSTILE]
)
def test_names_that_are_none_are_given_in_a_dictionary(name: str) -> None:
    found: dict[str, Any] = {"f": lambda *args, **kwargs: (args, kwargs)}
    text = call("f", [1], {"plain": 2, name: 3}, "output = ")
    exec(text, found)
    assert found["output"] == ((1,), {"plain": 2, name: 3})
    assert len([node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]) == 1


class Impostor(str):
    def __repr__(self) -> str:
        return "f()"


@pytest.mark.parametrize("value", [Impostor("x"), np.float64(1.0), object(), len, {1}, [Impostor("x")], b"x"])
def test_only_plain_values_are_written(value: Any) -> None:
    with pytest.raises(Unwritable, match="cannot be written in Python"):
        source(value)


def test_complex_numbers_that_are_not_finite_come_back() -> None:
    assert eval(source(complex(math.inf, -1))) == complex(math.inf, -1)
