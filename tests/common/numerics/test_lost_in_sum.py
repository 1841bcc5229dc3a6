"""What sums lose: the derived size against sums of float32 that are added one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from probe.common.numerics.rounding import lost_in_sum


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
