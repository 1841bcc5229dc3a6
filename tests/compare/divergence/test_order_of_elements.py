"""A parameter whose elements may be in another order: said as possible by statistics, as certain by saved values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, W, X, call, compared, first, result_of, tensor

LINEAR = "Module.linear.Linear.forward.0"
NEGATED = np.concatenate([-W[:1], W[1:]])
ROLLED = np.roll(W, 1, 0)
STATISTICS = {key: value for key, value in tensor(W).items() if key in ("Max", "Min", "Mean", "Norm")}


def run(weight: Any, **entry: Any) -> Run:
    return {LINEAR: call([tensor(X)], tensor(X @ weight.T), weight={**tensor(weight), **entry})}


def test_a_negated_row_is_no_other_order(tmp_path: Path) -> None:
    largest = np.abs(W[0]).max()
    assert NEGATED.max() == W.max() and NEGATED.min() == W.min() and largest < W.max()
    divergence = compared(tmp_path, run(NEGATED), run(W))
    assert divergence is not None and divergence.record == LINEAR
    assert divergence.first.reason.startswith("parameter linear.weight differs")
    assert "order" not in divergence.first.cause


def test_statistics_allow_another_order_and_do_not_show_it(tmp_path: Path) -> None:
    mean = float(W.mean())
    close = mean + 5e-6 * float(np.sqrt(np.square(W).mean()))
    divergence = compared(tmp_path, run(ROLLED, Mean=close), run(W, Mean=mean))
    assert divergence is not None
    assert divergence.first.cause.startswith("parameter linear.weight may have its elements in another order")


@pytest.mark.parametrize("weight, said", [
    (ROLLED, "has the same elements in another order (permuted, transposed)"),
    (np.where(np.arange(64) == 9, -W, W),
     "has other elements, with the same maximum, minimum, mean and norm"),
])  # fmt: skip
def test_saved_values_show_it(tmp_path: Path, weight: Any, said: str) -> None:
    """Statistics say the same of both; the elements tell."""
    for side, values in (("target", weight), ("golden", W)):
        files = tmp_path / side / "dump_tensor_data"
        files.mkdir(parents=True)
        np.save(files / "weight.npy", values)
    runs = [run(values, **STATISTICS, data_name="weight.npy") for values in (weight, W)]
    result = result_of(tmp_path, *runs, task="tensor")
    assert first(result).cause == f"parameter linear.weight {said}"
