"""Causes of a divergence: calls on its way, gradients that one side does not take, the settings of an optimizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from divergence_runs import (
    Run,
    W,
    X,
    backward,
    call,
    compared,
    first,
    tensor,
    write,
)
from made_dumps import plain

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.result import Unexplained

LINEAR, ROLL, TANH = "Functional.linear.0.forward", "Torch.roll.0.forward", "Torch.tanh.0.forward"


def run(way: str = "") -> Run:
    x = np.tanh(X)
    data = {TANH: call([tensor(X)], tensor(x))}
    if way == "roll":
        # The same elements are added up in another order.
        x = np.roll(x, 1, -1)
        data[ROLL] = call(
            [tensor(np.tanh(X)), plain(1), plain(-1)], {**tensor(x), "Mean": float(x.mean()) * (1 + 1e-7)}
        )
        data[ROLL]["output"] = [data[ROLL]["output"]]
    if way == "half":
        short = x.astype(np.float16)
        data["Tensor.half.0.forward"] = call([tensor(x)], tensor(short, "torch.float16"))
        x = short.astype(np.float32)
        data["Tensor.float.0.forward"] = call([tensor(short, "torch.float16")], tensor(x))
    data[LINEAR] = call([tensor(x), tensor(W)], tensor(x @ W))
    return data


def with_other_names(folder: Path, target: Run, golden: Run) -> Unexplained:
    paths = [write(folder / side, data) for side, data in (("target", target), ("golden", golden))]
    return first(compare_dumps(read(paths[0]), read(paths[1]), Options(fuzzy=True)))


@pytest.mark.parametrize("on_target", [True, False])
def test_a_call_of_one_side_that_reorders_the_input_is_named(tmp_path: Path, on_target: bool) -> None:
    divergence = compared(tmp_path, *((run("roll"), run()) if on_target else (run(), run("roll"))))
    assert divergence is not None and divergence.record == LINEAR
    assert divergence.first.cause == f"only the {'target' if on_target else 'golden run'} calls {ROLL} (1, -1)"


def test_other_names_leave_an_argument_as_the_cause(tmp_path: Path) -> None:
    norm = "Functional.layer_norm.0.forward"
    given = [plain(64), tensor(W[0]), tensor(W[1])]
    runs = [{norm: call([tensor(X), *given, plain(eps)], tensor(X * (1 + eps)))} for eps in (0.1, 1e-5)]
    assert with_other_names(tmp_path / "other", *runs).cause == "eps is 0.1 and in the golden run 1e-05"
    divergence = compared(tmp_path / "same", *runs)
    assert divergence is not None and divergence.first.cause == "eps is 0.1 and in the golden run 1e-05"


def test_a_call_that_computes_is_no_other_order(tmp_path: Path) -> None:
    data = run()
    data["Tensor.__add__.0.forward"] = call([tensor(np.tanh(X))], tensor(np.tanh(X)))
    data[LINEAR] = {**data.pop(LINEAR), "output": [tensor(X @ W * 2)]}
    divergence = compared(tmp_path, data, run())
    assert divergence is not None and divergence.record == LINEAR


# --- gradients


def scaled(factor: float, other: float) -> Run:
    head, low = "Module.head.Linear", "Module.low.Linear"
    data: Run = {f"{each}.forward.0": call([tensor(X)], tensor(X), weight=tensor(W)) for each in (low, head)}
    gradient = (X + np.float32(0.3)) * np.float32(factor)
    data[f"{head}.backward.0"] = backward([tensor(gradient)], tensor(gradient))
    for each, size in ((head, factor), (low, other)):
        data[f"{each}.parameters_grad.0"] = {"weight": [tensor(W * np.float32(size))]}
    return data


@pytest.mark.parametrize("factor, tells", [
    (16.0, "probably the target sums the loss over 16 terms, and the golden run takes the mean"),
    (1 / 1024, "probably the golden run sums the loss over 1024 terms, and the target takes the mean"),
    (0.3, "the loss is scaled, or summed instead of averaged, or gradients are clipped"),
])  # fmt: skip
def test_one_factor_over_all_gradients_is_told(tmp_path: Path, factor: float, tells: str) -> None:
    divergence = compared(tmp_path, scaled(factor, factor), scaled(1, 1))
    assert divergence is not None and divergence.first.cause.startswith("all gradients of parameters are ")
    assert divergence.first.cause.endswith(f" times those of the golden run: {tells}")


# --- optimizers


# --- arguments
