"""The compiled reductions, against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.backends.shared import tensors

pytestmark = pytest.mark.skipif(tensors.reduce is None, reason="the package was installed without a C compiler")

FLOATS = ["float16", "float32", "float64"]
EXACT_TO = {"float16": 1e-3, "float32": 2.5e-7, "float64": 1e-14}


def reduce(array: Any, kind: str | None = None, wide: bool = False) -> tuple[float, ...]:
    assert tensors.reduce is not None
    strides = tuple(stride // array.itemsize for stride in array.strides)
    address = array.__array_interface__["data"][0]
    return tensors.reduce(address, array.shape, strides, tensors.KINDS[kind or str(array.dtype)], wide, False)[:4]


def expected(array: Any) -> tuple[float, ...]:
    wide = array.astype(np.float64)
    return array.max().item(), array.min().item(), wide.mean().item(), float(np.sqrt((wide * wide).sum()))


@st.composite
def views(draw: st.DrawFn) -> Any:
    """Arrays of up to five dimensions, sliced, with axes in any order and some that repeat."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    array = np.random.default_rng(draw(st.integers(0, 99))).integers(-100, 100, shape)
    array = array[tuple(slice(draw(st.integers(0, size - 1)), None, draw(st.integers(1, 3))) for size in shape)]
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    return np.broadcast_to(array, (draw(st.integers(1, 3)), *array.shape))


@given(view=views())
def test_any_strides_give_what_the_elements_give(view: Any) -> None:
    assert reduce(view) == pytest.approx(expected(view), rel=1e-12)


# There are 16 lanes and blocks of 256; rows from 64 on are read in place, shorter ones are gathered up to 1024.
@pytest.mark.parametrize("count", [1, 15, 16, 17, 255, 256, 257, 1023, 1024, 1025, 100_003])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_of_any_number(dtype: str, count: int) -> None:
    array = (np.random.default_rng(count).normal(size=count) * 3 + 1).astype(dtype)
    largest, smallest, mean, norm = reduce(array)
    assert (largest, smallest) == expected(array)[:2]
    assert mean == pytest.approx(expected(array)[2], rel=EXACT_TO[dtype], abs=EXACT_TO[dtype])
    assert norm == pytest.approx(expected(array)[3], rel=EXACT_TO[dtype])


def test_every_float16_is_read_and_rounded_exactly() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for number in every[np.isfinite(every)]:
        one = np.array([number])
        assert reduce(one) == (number, number, number, pytest.approx(abs(float(number)), rel=1e-3, abs=2e-4))


def test_a_mean_of_float16_is_rounded_half_to_even_as_numpy_rounds_it() -> None:
    for seed in range(300):
        pair = np.random.default_rng(seed).normal(scale=10.0 ** (seed % 11 - 6), size=2).astype(np.float16)
        assert reduce(pair)[2] == float(np.float16(pair.astype(np.float64).mean()))


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    numbers = np.random.default_rng(4).normal(size=4000).astype(np.float32)
    numbers = (numbers.view(np.uint32) & 0xFFFF0000).view(np.float32)
    halves = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    assert reduce(halves, "bfloat16", wide=True) == pytest.approx(expected(numbers), rel=1e-6)
    rounded = reduce(halves, "bfloat16")
    assert rounded == pytest.approx(expected(numbers), rel=2**-8)
    assert all(np.float32(value).view(np.uint32) & 0xFFFF == 0 for value in rounded)


def test_a_norm_overflows_and_vanishes_where_the_squares_do() -> None:
    assert reduce(np.full(3, 1e30, np.float32))[3] == math.inf
    assert reduce(np.full(3, 1e-30, np.float32))[3] == 0.0
    assert reduce(np.full(2, 60000.0, np.float16))[3] == math.inf
    assert reduce(np.full(2, 60000.0, np.float16), wide=True)[3] == pytest.approx(60000 * math.sqrt(2))


@pytest.mark.parametrize(
    "arguments",
    [(0, (2,), (1,), 0), (8, (2,), (1,), 99), (8, (2,), (-1,), 0), (8, (0,), (1,), 0), (8, (2, 2), (1,), 0)],
)
def test_what_is_no_memory_is_refused(arguments: tuple[Any, ...]) -> None:
    assert tensors.reduce is not None
    with pytest.raises(ValueError):
        tensors.reduce(*arguments, False, True)
