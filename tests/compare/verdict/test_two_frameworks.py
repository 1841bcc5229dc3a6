"""What is no divergence between two frameworks; their settings are in test_torch_settings, ports in judged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Record, Run, backward, call, tensor, write
from made_dumps import plain

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.result import Divergence

X = np.random.default_rng(3).normal(size=(4, 6, 6)).astype(np.float32)
LOWEST = float(np.finfo(np.float32).min)


def ported(array: Any, **more: Any) -> Record:
    """The entry of an array in MindSpore."""
    return {**tensor(array, "Float32", **more), "type": "mindspore.Tensor"}


def compared(folder: Path, target: Run, golden: Run, framework: str = "mindtorch") -> Divergence | None:
    write(folder / "target", target, framework=framework)
    write(folder / "golden", golden)
    return compare_dumps(read(folder / "target"), read(folder / "golden")).divergence


def masked(kind: Any, fill: float, hidden: int) -> Run:
    """Scores with a causal mask, of which more columns may be hidden, and their softmax."""
    scores = np.where(np.triu(np.ones((6, 6)), hidden).astype(bool), fill, X.astype(np.float64))
    with np.errstate(over="ignore"):
        entry = kind(scores)
    if abs(fill) > 1e30:
        entry["Norm"] = math.inf  # As it is in float32.
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return {"Functional.softmax.0.forward": call([entry, plain(-1)], kind(powers / powers.sum(-1, keepdims=True)))}


@pytest.mark.parametrize("golden_fill", [-1e4, LOWEST])
@pytest.mark.parametrize(
    ("fill", "hidden", "is_same"),
    [(-1e4, 1, True), (-1e9, 1, True), (LOWEST, 1, True), (-1e9, 2, False), (-1e9, 6, False)],
)
def test_masks_may_be_filled_with_other_numbers_and_not_be_other_masks(
    tmp_path: Path, fill: float, golden_fill: float, hidden: int, is_same: bool
) -> None:
    runs = masked(ported, fill, hidden), masked(tensor, golden_fill, 1)
    assert (compared(tmp_path, *runs, "mindspore") is None) == is_same


def scaled_loss(kind: Any, factor: float, overflows: bool = False) -> Run:
    """A gradient at a loss scale, which is multiplied by `factor`."""
    gradient = kind(X * 65536.0 * factor)
    if overflows:
        gradient.update({"Max": math.inf, "Norm": math.inf, "Mean": math.inf})
    forward = call([kind(X)], kind(np.tanh(X)))
    return {"Tensor.tanh.0.forward": forward, "Tensor.tanh.0.backward": backward([kind(X * 65536.0)], gradient)}


@pytest.mark.parametrize(("factor", "overflows"), [(1.05, False), (100.0, False), (1.0, True)])
def test_gradients_at_a_loss_scale_are_no_mask(tmp_path: Path, factor: float, overflows: bool) -> None:
    runs = scaled_loss(ported, factor, overflows), scaled_loss(tensor, 1.0)
    assert compared(tmp_path, *runs) is not None


@pytest.mark.parametrize("target, golden", [([3e5], [2e5]), ([-3e5, 6e5], [-2e5, 4e5]), ([3e9], [2e5])])
def test_outliers_are_no_mask(tmp_path: Path, target: list[float], golden: list[float]) -> None:
    def run(kind: Any, values: list[float]) -> Run:
        array = X.astype(np.float64).copy()
        array.flat[: len(values)] = values
        return {"Functional.relu.0.forward": call([kind(X)], kind(array))}

    assert compared(tmp_path, run(ported, target), run(tensor, golden)) is not None


def test_a_gradient_that_one_framework_leaves_out_is_absent(tmp_path: Path) -> None:
    def run(kind: Any, second: Any) -> Run:
        forward = call([kind(X), kind(X[0])], kind(X + X[0]))
        return {"Tensor.__add__.0.forward": forward, "Tensor.__add__.0.backward": backward([kind(X)], kind(X), second)}

    assert compared(tmp_path, run(ported, ported(X.sum(0))), run(tensor, None)) is None
