"""How far a recorded result and the one of now are from each other."""

from __future__ import annotations

import numpy as np
import pytest

from probe.rerun.rerun_call import difference


def test_equal_values_are_the_same() -> None:
    values = np.array([1.0, np.nan, -0.0, np.inf], np.float32)
    assert difference(values, "float32", values.copy(), "float32").is_same


def test_the_sign_of_a_zero_is_a_difference() -> None:
    found = difference(np.array([0.0], np.float32), "float32", np.array([-0.0], np.float32), "float32")
    assert (found.count, found.max_ulp) == (1, 0.0)


@pytest.mark.parametrize(("dtype", "spacing"), [("float32", 2.0**-23), ("bfloat16", 2.0**-7), ("float16", 2.0**-10)])
def test_the_furthest_element_is_measured_in_units_of_its_last_place(dtype: str, spacing: float) -> None:
    recorded = np.array([[1.0, 1000.0], [1.5, 2.0]], np.float32)
    now = recorded + np.array([[0, 0], [3 * spacing, 2 * spacing]], np.float32)
    found = difference(recorded, dtype, now, dtype)
    assert (found.count, found.size, found.index, found.max_ulp) == (2, 4, (1, 0), 3.0)
    assert (found.recorded, found.now) == (1.5, 1.5 + 3 * spacing)


def test_a_nan_of_one_side_is_further_off_than_any_number() -> None:
    found = difference(np.array([1.0, 2.0]), "float64", np.array([9.0, np.nan]), "float64")
    assert (found.index, found.max_ulp) == ((1,), None)


def test_whole_numbers_have_no_last_place() -> None:
    found = difference(np.array([1, 2, 3]), "int64", np.array([1, 5, 4]), "int64")
    assert (found.count, found.index, found.recorded, found.now, found.max_ulp) == (2, (1,), 2, 5, None)


def test_another_shape_or_dtype_is_said_in_words() -> None:
    one = np.zeros((2, 3), np.float32)
    assert "[2, 3]" in difference(one, "float32", np.zeros(6, np.float32), "float32").form
    assert "bfloat16" in difference(one, "bfloat16", one, "float32").form
