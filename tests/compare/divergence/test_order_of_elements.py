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
    """Rows in another order give columns in another order, which the next call shows."""
    y = X @ weight.T
    return {
        LINEAR: call([tensor(X)], tensor(y), weight={**tensor(weight), **entry}),
        "Functional.linear.0.forward": call([tensor(y), tensor(W)], tensor(y @ W)),
    }


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


def test_values_that_are_equal_up_to_rounding_are_in_no_other_order(tmp_path: Path) -> None:
    """The same weight with its smallest elements rounded otherwise: the results nearly agree."""
    moved = float(W.mean()) + 5e-6 * float(np.sqrt(np.square(W).mean()))
    runs = run(W, Mean=moved), run(W)
    runs[0][LINEAR]["output"] = [tensor(X @ W.T * np.float32(1 + 2e-4))]
    divergence = compared(tmp_path, *runs)
    assert divergence is not None
    assert divergence.first.reason.startswith("parameter linear.weight differs")
    assert "order" not in divergence.first.cause


def test_values_in_another_order_show_in_what_is_made_of_them(tmp_path: Path) -> None:
    """Weights of a norm that are nearly equal may change places with little effect, which is expected then."""
    weight = (1 + W[0] / 100).astype(np.float32)
    mean = float(weight.mean())
    runs: list[Run] = [
        {LINEAR: call([tensor(X)], tensor(X * each), weight={**tensor(each), "Mean": mean + moved})}
        for each, moved in ((np.roll(weight, 7), 5e-6), (weight, 0.0))
    ]
    divergence = compared(tmp_path, *runs)
    assert divergence is not None
    assert divergence.first.cause.startswith("parameter linear.weight may have its elements in another order")


ADD = "Tensor.__add__.0.forward"
PARTS = "Functional.tanh.0.forward", "Functional.silu.0.forward"


def summed(moved: float, **checksum: str) -> Run:
    """The sum of two results, times a factor that comes from nowhere."""
    first, second = np.tanh(X), np.tanh(X[::-1])
    return {
        PARTS[0]: call([tensor(X)], {**tensor(first), **checksum}),
        PARTS[1]: call([tensor(X)], {**tensor(second), **checksum}),
        ADD: call([{**tensor(first), **checksum}, {**tensor(second), **checksum}], tensor((first + second) * moved)),
    }


@pytest.mark.parametrize("checksum, is_said", [({}, True), ({"md5": "0a0b0c0d"}, False)])
def test_operands_with_equal_checksums_are_in_no_other_order(
    tmp_path: Path, checksum: dict[str, str], is_said: bool
) -> None:
    divergence = compared(tmp_path, summed(1.3, **checksum), summed(1.0, **checksum))
    assert divergence is not None and divergence.record == ADD
    assert ("may have its elements in another order" in divergence.first.cause) == is_said
