"""What rounding may do to sums: derived sizes against sums that are computed here."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.common.dump.reading.items import Item
from probe.common.numerics.error_bounds import (
    CONFIDENCE,
    Terms,
)
from probe.common.numerics.rounding import lost_in_sum

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
