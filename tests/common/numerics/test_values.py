"""Metrics of values, and what rounding may do to sums, held against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from probe.common.dump.reading.items import Item
from probe.common.numerics.error_bounds import (
    CONFIDENCE,
    Terms,
)
from probe.common.numerics.rounding import lost_in_sum
from probe.common.numerics.statistics import NOT_AVAILABLE
from probe.common.numerics.values import BLOCK, compare_values

# --- metrics of values, held against numpy written out in float64

NAN, INF = np.nan, np.inf


def array(*values: Any, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.array(values, dtype=dtype)


def test_the_six_metrics_of_two_tensors() -> None:
    rng = np.random.default_rng(20261121)
    b = rng.normal(size=(5, 1, 7))
    n = b + rng.normal(size=b.shape) * 1e-3
    cosine, distance, largest, relative, thousandth, five = compare_values(n, b.squeeze()).metrics
    assert cosine == round((n * b).sum() / np.sqrt((n**2).sum() * (b**2).sum()), 6)
    assert distance == pytest.approx(np.sqrt(((n - b) ** 2).sum()), rel=1e-12)
    assert largest == pytest.approx(np.abs(n - b).max(), abs=1e-12)
    errors = np.abs(n - b) / np.abs(b)
    assert relative == pytest.approx(errors.max(), rel=1e-9)
    assert (thousandth, five) == ((errors < 0.001).mean(), (errors < 0.005).mean())


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_value_has_no_direction(shape: tuple[int, ...]) -> None:
    metrics = compare_values(array(3).reshape(shape), array(2).reshape(shape)).metrics
    assert metrics == ("unsupported", "unsupported", 1.0, 0.5, "unsupported", "unsupported")
    assert compare_values(array(NAN).reshape(shape), array(2).reshape(shape)).metrics[2] == "Nan"


def test_nan_and_inf_in_the_same_places_are_left_out() -> None:
    measured = compare_values(array(1, NAN, INF, -INF), array(1, NAN, INF, -INF))
    assert measured.metrics == (1.0, 0.0, 0.0, 0.0, 1.0, 1.0) and not measured.note


PLACES = [((1, NAN), (1, 2)), ((1, INF), (1, NAN)), ((1, 2), (INF, 2)), ((1, INF), (1, -INF))]


@pytest.mark.parametrize(("n", "b"), PLACES)
def test_nan_and_inf_in_other_places_are_a_difference(n: tuple[float, ...], b: tuple[float, ...]) -> None:
    measured = compare_values(array(*n), array(*b))
    assert measured.metrics == NOT_AVAILABLE and measured.note.startswith("error: ")


LONG = 2 * BLOCK + 77


def by_numpy(n: np.ndarray[Any, Any], b: np.ndarray[Any, Any], kind: str) -> list[float]:
    """The six metrics, each of the whole vectors at once."""
    wide_n, wide_b = n.astype(np.float64), b.astype(np.float64)
    product = (wide_n * wide_b).sum() / math.sqrt((wide_n**2).sum() * (wide_b**2).sum())
    x, y = n.astype(kind), b.astype(kind)
    tiny = np.where(y == 0, np.finfo(kind).eps, 0).astype(kind)
    relative = np.abs((x + tiny) - (y + tiny)) / np.abs(y + tiny)
    apart = wide_n - wide_b
    shares = [np.mean(relative < np.array(limit, kind)) for limit in (0.001, 0.005)]
    return [product, math.sqrt((apart**2).sum()), np.abs(apart).max(), float(relative.max()), *shares]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "bool"])
def test_long_tensors_are_measured_as_a_whole(dtype: str) -> None:
    rng = np.random.default_rng(7)
    b = (rng.normal(size=LONG) * 10).astype(dtype)
    n = (b + rng.normal(size=LONG) * 0.02).astype(dtype)
    b[[3, BLOCK + 5]] = 0
    kind = "float64" if dtype == "float64" else "float32"
    found = compare_values(n, b).metrics
    assert found == pytest.approx(by_numpy(n, b, kind), rel=1e-6, abs=1e-12)
    assert found[4:] == tuple(by_numpy(n, b, kind)[4:])


# --- what sums lose: the derived size against sums of float32 that are added one after the other


@pytest.mark.parametrize("of_one_sign", [False, True])
@pytest.mark.parametrize("terms", [16, 256, 4096])
def test_what_a_sum_in_order_loses_has_the_derived_size(terms: int, of_one_sign: bool) -> None:
    numbers = np.random.default_rng(terms).standard_normal((256, terms)).astype(np.float32)
    if of_one_sign:
        numbers = np.abs(numbers)
    found = np.zeros(256, np.float32)
    for index in range(terms):
        found = found + numbers[:, index]
    wide = numbers.astype(np.float64)
    exact = wide.sum(1)
    lost = lost_in_sum(terms, 2.0**-24)
    of_terms = lost.of_terms * np.sqrt(np.square(wide).sum(1).mean())
    derived = float(np.hypot(of_terms, lost.of_sum * np.sqrt(np.square(exact).mean())))
    measured = float(np.sqrt(np.square(found - exact).mean()))
    assert 0.4 * derived < measured < derived


# --- the bound of a call depends on what its function does, by whichever name it was recorded


def tensor(size: float, *shape: int) -> Item:
    norm = size * math.sqrt(math.prod(shape))
    return Item("x", "input", "torch.float32", shape, max=size, min=-size, mean=0.0, norm=norm, requires_grad=False)


SMALL, LARGE = tensor(1e-3, 4), tensor(1.0, 4)


def terms() -> Terms:
    found = Terms()
    found.add(LARGE, 1e-6)
    found.add(LARGE, 1e-6)
    return found


def test_rounding_is_expected_to_grow_with_the_root_of_the_length() -> None:
    """The bound of Higham and Mary holds for sums of random terms, which are computed here."""
    random = np.random.default_rng(20)
    for length in (64, 1024, 16384):
        a, b = random.normal(size=(2, 200, length)).astype(np.float32)
        products = a * b
        rounded = np.zeros(200, np.float32)
        for column in products.T:
            rounded += column
        exact = products.astype(np.float64).sum(1)
        apart = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
        assert apart < CONFIDENCE * np.sqrt(length) * 2.0**-24
