"""Numbers that fill masks, and numbers that do not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import beside_fill_values

LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("fill, other, same", [
    (-2e5, -3e7, True), (-2e5, -math.inf, True), (2e5, 3e7, True), (2e5, math.inf, False)
])  # fmt: skip
def test_a_number_that_is_repeated_fills_a_mask(fill: float, other: float, same: bool) -> None:
    def item(value: float) -> Item:
        array = np.where(np.triu(np.ones((6, 6)), 1).astype(bool), value, 0.0)
        norm = float(np.sqrt(np.square(array).sum()))
        values = {"max": float(array.max()), "min": float(array.min()), "mean": float(array.mean()), "norm": norm}
        return Item("x", "input", dtype="torch.float32", shape=(6, 6), **values)

    assert beside_fill_values(item(other), item(fill)) == (0.0 if same else None)


@pytest.mark.parametrize("target, golden, same", [
    (-1e9, LOWEST, True), (-math.inf, -1e4, True), (3e5, 2e5, False), (-3e5, -2e5, False), (math.inf, 1e9, False),
])  # fmt: skip
def test_a_tensor_of_one_number_is_a_mask_where_that_is_known(target: float, golden: float, same: bool) -> None:
    def item(value: float) -> Item:
        values = {"max": value, "min": value, "mean": value, "norm": abs(value)}
        return Item("x", "input", dtype="torch.float32", shape=(9,), **values)

    assert beside_fill_values(item(target), item(golden)) == (0.0 if same else None)
