"""What is inside of containers, and values as text that Python reads again."""

from __future__ import annotations

import ast
import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from probe.common.containers import MAX_CONTAINERS, MAX_DEPTH, found_in
from probe.common.source_text import Unwritable, call, numbers, source, wrapped

# --- what is inside of containers is found in order, in bounded time


@dataclasses.dataclass
class Output:
    first: Any
    second: Any


def test_values_come_in_the_order_in_which_they_stand() -> None:
    value = [1, (2, {"a": 3, "b": [4, "no"]}), Output([5], 6), None, 7.5, 7]
    assert list(found_in(value, int)) == [1, 2, 3, 4, 5, 6, 7]
    assert list(found_in(value, int, in_fields=False)) == [1, 2, 3, 4, 7]
    assert list(found_in(8, int)) == [8]


def test_a_container_that_holds_itself_has_an_end() -> None:
    value: list[Any] = [1]
    value.append(value)
    value.append(2)
    assert list(found_in(value, int)) == [1] * MAX_DEPTH + [2] * MAX_DEPTH


def test_lists_that_share_their_parts_are_followed_to_a_bound() -> None:
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    assert 0 < len(list(found_in(value, int))) <= MAX_CONTAINERS


@pytest.mark.parametrize("deep", [MAX_DEPTH, MAX_DEPTH + 1])
def test_nesting_is_followed_to_a_bound(deep: int) -> None:
    value: Any = 1
    for _ in range(deep):
        value = [value]
    assert len(list(found_in(value, int))) == (deep <= MAX_DEPTH)


# --- values as text that Python reads again


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -2.5, 1e-30, "mean", 'a "quoted" \\ text', [1, [2.0, None]], (1,), (1, 2), (), {"a": [1]},
        slice(None), slice(1, None, 2), Ellipsis, 1 + 2j, math.inf, -math.inf,
    ],
)  # fmt: skip
def test_a_value_is_read_again(value: Any) -> None:
    assert eval(source(value)) == value


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.bool_])
def test_numbers_come_back_exactly(dtype: Any) -> None:
    seed = np.random.default_rng(3)
    values = (seed.standard_normal((3, 2, 2)) * 100).astype(dtype)
    assert np.array_equal(np.array(eval(numbers(values)), dtype), values)
    assert np.array_equal(np.array(eval(numbers(values[0, 0, 0])), dtype), values[0, 0, 0])


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
