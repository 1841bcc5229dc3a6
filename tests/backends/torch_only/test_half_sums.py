"""Sums of half precision are rounded once on this machine, but for the functions whose line in the table says so."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import pytest

from probe.common.operations.function import Trait
from probe.common.operations.lookup import function, names_with

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
half_sums = importlib.import_module("half_sums")


@pytest.mark.parametrize("name", half_sums.CASES)
def test_only_functions_with_the_trait_round_before_the_sum_is_complete(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result, gradients = half_sums.measure(half_sums.CASES[name])
    known = function(name)
    assert result <= half_sums.ONE_ROUNDING or known.has(Trait.ROUNDS_EARLY)
    assert gradients <= half_sums.ONE_ROUNDING or known.has(Trait.ROUNDS_GRADIENTS_EARLY)


def test_every_function_with_the_trait_is_measured() -> None:
    known = {function(name).name for name in names_with(Trait.ROUNDS_EARLY, Trait.ROUNDS_GRADIENTS_EARLY)}
    assert known == known & set(half_sums.CASES)
