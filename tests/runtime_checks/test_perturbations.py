"""Inputs that are changed by as little as can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.runtime_checks.examination import bits_flipped, ends_exchanged, one_unit_added

_NUMPY = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": np.float32}


def held(values: list[float], dtype: str) -> Any:
    """`values` in the dtype; a bfloat16 is a float32 whose lower half is zero."""
    array = np.array(values, _NUMPY[dtype])
    return (array.view(np.uint32) & 0xFFFF0000).view(np.float32) if dtype == "bfloat16" else array


def places(values: Any, dtype: str) -> Any:
    """The place of each number among all of the dtype on its side of zero."""
    bits = values.view({8: np.int64, 4: np.int32, 2: np.int16}[values.itemsize]).astype(np.int64)
    assert dtype != "bfloat16" or not (bits & 0xFFFF).any()
    return bits >> 16 if dtype == "bfloat16" else bits


@pytest.mark.parametrize("dtype", _NUMPY)
def test_every_element_becomes_a_neighbour(dtype: str) -> None:
    values = held([1.0, 1.5, -3.0, 1000.0, 0.1], dtype)
    for perturb in (bits_flipped, one_unit_added):
        found = perturb([values], [dtype])
        assert found is not None
        assert found[0].dtype == values.dtype
        # Below a power of two the neighbours stand twice as close.
        assert set(np.abs(places(found[0], dtype) - places(values, dtype))) <= {1, 2}
        assert np.array_equal(values, held([1.0, 1.5, -3.0, 1000.0, 0.1], dtype))


def test_the_last_bit_is_that_of_a_short_dtype() -> None:
    """As bits of float8_e4m3fn: the last of three behind the point."""
    values = np.array([1.0, 1.125, -1.75, 2.0**-6, 2.0**-9, 448.0, np.inf, 0.0], np.float32)
    found = bits_flipped([values], ["float8_e4m3fn"])
    assert found is not None
    # Nothing above 448 is a number, and neighbours of subnormal numbers are not asked for.
    assert found[0].tolist() == [1.125, 1.0, -1.875, 2.0**-6 * 1.125, 2.0**-9, 448.0, np.inf, 0.0]
    assert bits_flipped([values], ["float8_e8m0fnu"]) is None


@pytest.mark.parametrize("dtype", _NUMPY)
def test_what_has_no_neighbours_stays(dtype: str) -> None:
    values = held([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], dtype)
    for perturb in (bits_flipped, one_unit_added):
        found = perturb([values], [dtype])
        assert found is not None
        assert np.array_equal(found[0][:-1], values[:-1], equal_nan=True)
        assert found[0][-1] != 1.0


def test_ends_are_exchanged_in_the_first_tensor() -> None:
    found = ends_exchanged([np.arange(3), np.array([[1.0, 2.0], [3.0, 4.0]])], ["int64", "float64"])
    assert found is not None
    assert found[1].tolist() == [[4.0, 2.0], [3.0, 1.0]]
