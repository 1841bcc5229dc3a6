"""Gradients of parameters that a kernel adds up row by row in bfloat16, as PyTorch's `layer_norm` does on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, backward, call, compared, named, rounded, tensor
from numpy.typing import NDArray

SHORT = "torch.bfloat16"


def short(array: Any) -> NDArray[np.float32]:
    return np.asarray(rounded(array, "bfloat16"))


def sum_of_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum of rows whose partial sums are rounded to bfloat16."""
    total = np.zeros(rows.shape[1:], np.float32)
    for row in rows:
        total = short(total + row)
    return total


NUMBERS_OF_ROWS = (64, 64, 64, 64, 64, 8192)


def norms(is_short: bool, kind: str = "MyNorm", of_functions: bool = False, factor_at: int = -1) -> Run:
    """Norms over unlike numbers of rows, and the gradients of their biases, which the short run sums row by row.

    Args:
        is_short: true if the run is in bfloat16, and sums in it.
        kind: the class of the norms.
        of_functions: true if the functions that they call are recorded too.
        factor_at: the norm whose gradient is three times as large.
    """
    random, dtype = np.random.default_rng(5), SHORT if is_short else "torch.float32"
    kept = short if is_short else np.array
    data: Run = {}
    for layer, rows in enumerate(NUMBERS_OF_ROWS):
        x, gradient = (kept(random.normal(size=(rows, 16)).astype(np.float32)) for _ in range(2))
        total = sum_of_rows(gradient) if is_short else gradient.sum(0)
        total = kept(total * np.float32(3 if layer == factor_at else 1))
        name, weight = f"Module.layers.{layer}.norm.{kind}", tensor(kept(np.ones(16, np.float32)), dtype)
        given, returned = tensor(x, dtype), tensor(gradient, dtype)
        data[f"{name}.forward.0"] = call([given], given, bias=weight)
        if of_functions:
            data[f"Functional.layer_norm.{layer}.forward"] = call([given, weight, weight], given)
            data[f"Functional.layer_norm.{layer}.backward"] = backward(
                [returned], returned, weight, tensor(total, dtype)
            )
        data[f"{name}.backward.0"] = backward([returned], returned)
        data[f"{name}.parameters_grad.0"] = {"bias": [tensor(total, dtype)]}
    return data


@pytest.mark.parametrize("of_functions", [False, True])
def test_norms_of_a_class_of_their_own_may_sum_rows_in_the_short_type(tmp_path: Path, of_functions: bool) -> None:
    sides = (norms(is_short, of_functions=of_functions) for is_short in (True, False))
    assert compared(tmp_path, *sides) is None


@pytest.mark.parametrize(("kind", "factor_at"), [("MyNorm", 0), ("MyNorm", 4), ("BatchNorm2d", 5)])
def test_a_wrong_gradient_is_named(tmp_path: Path, kind: str, factor_at: int) -> None:
    found = compared(tmp_path, norms(True, kind, factor_at=factor_at), norms(False, kind))
    assert named(found) == f"Module.layers.{factor_at}.norm.{kind}.parameters_grad.0"
