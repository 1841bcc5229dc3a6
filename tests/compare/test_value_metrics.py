"""Metrics of values, held against numpy written out in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.compare.value_metrics import NOT_AVAILABLE, SHAPE_UNMATCHED, UNSUPPORTED, compare_values

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


def test_compat_does_not_tell_inf_from_minus_inf() -> None:
    assert compare_values(array(1, INF), array(1, -INF), compat=True).metrics[0] == 1.0


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "float64", "complex64"])
def test_every_type_is_measured(dtype: str) -> None:
    metrics = compare_values(array(1, 0, 1, dtype=dtype), array(1, 1, 1, dtype=dtype)).metrics
    assert metrics[1:3] == (1.0, 1.0) and metrics[4] == pytest.approx(5 / 6 if dtype == "complex64" else 2 / 3)
