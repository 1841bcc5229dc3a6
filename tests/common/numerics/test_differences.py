"""The compiled pass over two vectors of float32, held against numpy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.common.numerics import one_pass as compiled
from probe.common.numerics.formats import FORMATS
from probe.common.numerics.one_pass import differences

pytestmark = pytest.mark.skipif(compiled._compiled is None, reason="the compiled part is not built here")


@pytest.mark.parametrize("count", [1, 7, 8, 1000, 4099])
@pytest.mark.parametrize("scale", [1.0, 1e-38, 1e30])
def test_the_numbers_are_those_of_float64(count: int, scale: float) -> None:
    random = np.random.default_rng(count)
    one, other = (scale * random.standard_normal((2, count))).astype(np.float32)
    other[::3] = one[::3]
    other[::5] = 0
    found = differences(one, other, FORMATS["float32"])
    assert found is not None
    a, b = one.astype(np.float64), other.astype(np.float64)
    for name, value in (
        ("squares_one", (a * a).sum()), ("squares_other", (b * b).sum()), ("products", (a * b).sum()),
        ("squares", ((a - b) ** 2).sum()),
    ):  # fmt: skip
        assert getattr(found, name) == pytest.approx(value, rel=1e-12, abs=1e-14 * scale * scale)
    assert found.largest == np.abs(a - b).max()
    larger = np.maximum(np.abs(one), np.abs(other))
    units = np.abs(a - b) / np.spacing(larger).astype(np.float64)
    assert found.most_units == units.max() and found.units == pytest.approx(units.sum(), rel=1e-12)
    zero = other == 0
    tiny = np.finfo(np.float32).eps
    relative = np.abs(np.where(zero, (one + tiny) - tiny, one - other)) / np.where(zero, tiny, np.abs(other))
    assert found.largest_relative == relative.max()


def test_units_of_a_shorter_format_are_larger() -> None:
    one, other = np.array([1.0, 1.5], np.float32), np.array([1.0078125, 1.5], np.float32)
    found = differences(one, other, FORMATS["bfloat16"])
    assert found is not None and (found.most_units, found.units) == (1.0, 1.0)


def test_values_that_are_not_finite_show_in_the_squares() -> None:
    one = np.array([1.0, np.nan, 2.0], np.float32)
    found = differences(one, np.ones(3, np.float32), None)
    assert found is not None and not math.isfinite(found.squares_one) and math.isfinite(found.squares_other)


def test_other_dtypes_have_no_compiled_function() -> None:
    assert differences(np.ones(2), np.ones(2), None) is None
