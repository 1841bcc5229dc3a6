"""Differences of statistics, value by value."""

from __future__ import annotations

import math
from typing import Any

import pytest

from probe.common.numerics.statistics import compare, fraction

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("value", [0, 8, 1.5, -0.0, True, None, "text", INF, -INF, NAN, 10**400])
def test_what_reads_the_same_has_no_difference(value: Any) -> None:
    assert compare(value, value) == (0, 0)


@pytest.mark.parametrize(
    ("n", "b", "difference", "relative"),
    [(3.0, 2.0, 1.0, 50.0), (2, 1, 1.0, 100.0), (-1.0, -2.0, 1.0, 50.0), (True, False, 1.0, "inf"), (8, 8.0, 0.0, 0.0)],
)
def test_numbers_differ_by_an_amount_and_a_percentage(n: Any, b: Any, difference: float, relative: Any) -> None:
    assert compare(n, b) == (difference, relative)


@pytest.mark.parametrize(
    ("n", "b", "cell"),
    [
        (NAN, 1.0, "Nan"), (1.0, NAN, "Nan"), (NAN, INF, "Nan"), (INF, 1.0, "inf"), (INF, -INF, "inf"),
        (-INF, 1.0, "-inf"), (-INF, INF, "-inf"), (1.0, INF, "-inf"), (1.0, -INF, "inf"),
        ("npu:0", "cuda:1", "N/A"), ("npu:0", "mean", "Diff"), ("mean", "sum", "Diff"), ("mean", 1, "Diff"),
        (None, 1.0, "Diff"), (10**400, 1, "Diff"),
    ],
)  # fmt: skip
def test_where_there_is_no_number_a_text_says_why(n: Any, b: Any, cell: str) -> None:
    assert compare(n, b) == (cell, cell)


def test_only_numbers_have_a_fraction() -> None:
    assert [fraction(cell) for cell in (0, 210.0, "inf", "N/A")] == [0, 2.1, None, None]
