"""Metrics of values, held against numpy written out in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from probe.common.numerics.statistics import NOT_AVAILABLE, SHAPE_UNMATCHED, UNSUPPORTED
from probe.common.numerics.values import BLOCK, compare_values

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


def test_zeros_on_the_golden_side_do_not_divide() -> None:
    metrics = compare_values(array(0, 1), array(0, 1)).metrics
    assert metrics == (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    assert compare_values(array(0, 0), array(0, 0)).metrics[0] == 1.0
    assert compare_values(array(1, 1), array(0, 0)).metrics[0] == "Nan"


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_value_has_no_direction(shape: tuple[int, ...]) -> None:
    metrics = compare_values(array(3).reshape(shape), array(2).reshape(shape)).metrics
    assert metrics == ("unsupported", "unsupported", 1.0, 0.5, "unsupported", "unsupported")
    assert compare_values(array(NAN).reshape(shape), array(2).reshape(shape)).metrics[2] == "Nan"


def test_shapes_that_differ_are_not_measured() -> None:
    assert compare_values(array(1, 2), array(1, 2, 3)).metrics == SHAPE_UNMATCHED
    assert compare_values(array(), array()).metrics == UNSUPPORTED


def test_nan_and_inf_in_the_same_places_are_left_out() -> None:
    measured = compare_values(array(1, NAN, INF, -INF), array(1, NAN, INF, -INF))
    assert measured.metrics == (1.0, 0.0, 0.0, 0.0, 1.0, 1.0) and not measured.note


PLACES = [((1, NAN), (1, 2)), ((1, INF), (1, NAN)), ((1, 2), (INF, 2)), ((1, INF), (1, -INF))]


@pytest.mark.parametrize(("n", "b"), PLACES)
def test_nan_and_inf_in_other_places_are_a_difference(n: tuple[float, ...], b: tuple[float, ...]) -> None:
    measured = compare_values(array(*n), array(*b))
    assert measured.metrics == NOT_AVAILABLE and measured.note.startswith("error: ")


def test_without_signs_inf_is_minus_inf() -> None:
    assert compare_values(array(1, INF), array(1, -INF), signed=False).metrics[0] == 1.0


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "float64", "complex64"])
def test_every_type_is_measured(dtype: str) -> None:
    metrics = compare_values(array(1, 0, 1, dtype=dtype), array(1, 1, 1, dtype=dtype)).metrics
    assert metrics[1:3] == (1.0, 1.0) and metrics[4] == pytest.approx(5 / 6 if dtype == "complex64" else 2 / 3)


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


def test_complex_numbers_are_pairs_however_long() -> None:
    rng = np.random.default_rng(8)
    b = rng.normal(size=LONG) + 1j * rng.normal(size=LONG)
    n = b * (1 + 1e-3j)
    pairs = [np.stack([array.real, array.imag], axis=-1).reshape(-1) for array in (n, b)]
    assert compare_values(n, b).metrics == pytest.approx(by_numpy(pairs[0], pairs[1], "float64"), rel=1e-6)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nan_and_inf_count_wherever_they_are(value: float) -> None:
    b = np.ones(LONG, np.float32)
    n = b.copy()
    n[-1] = value
    assert compare_values(n, b).metrics == NOT_AVAILABLE
    b[-1] = value
    assert compare_values(n, b).metrics == (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)


def test_numbers_whose_squares_are_too_large_are_finite() -> None:
    n, b = array(1e200, 2e200, dtype="float64"), array(1e200, 1e200, dtype="float64")
    measured = compare_values(n, b)
    assert measured.metrics[0] == "Nan" and measured.metrics[2:] == (1e200, 1.0, 0.5, 0.5) and not measured.note


def test_views_are_measured_in_their_own_order() -> None:
    b = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert compare_values(b.T, b.T.copy()).metrics[1] == 0.0
    # In float64: before numpy 2 the norm of float32 is a float32.
    expected = np.linalg.norm((b.T - b.reshape(4, 3)).astype(np.float64))
    assert compare_values(b.T, b.reshape(4, 3)).metrics[1] == pytest.approx(expected, rel=1e-12)
