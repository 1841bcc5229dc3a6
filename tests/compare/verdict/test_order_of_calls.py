"""Calls in another order, in other modules, or made on one side alone on the way to a gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, W, X, call, compared, tensor

LINEAR, TANH, MUL, RELU = (
    f"{name}.0.forward" for name in ("Functional.linear", "Torch.tanh", "Tensor.mul", "Functional.relu")
)


def scaled(x: Any) -> Any:
    return (x * np.float32(0.5)).astype(np.float32)


def run(scales_first: bool) -> Run:
    x = X @ W
    data = {LINEAR: call([tensor(X), tensor(W)], tensor(x))}
    functions = [(MUL, scaled), (TANH, np.tanh)]
    for name, function in functions if scales_first else functions[::-1]:
        y = function(x)
        data[name] = call([tensor(x)], tensor(y))
        x = y
    data[RELU] = call([tensor(x)], tensor(np.maximum(x, 0)))
    return data


def test_another_order_of_calls_is_said(tmp_path: Path) -> None:
    divergence = compared(tmp_path, run(False), run(True))
    assert divergence is not None and divergence.record == TANH
    assert divergence.first.cause == f"input.0 is what {LINEAR} returned, and in the golden run what {MUL} returned"


def test_whichever_side_has_the_call_first(tmp_path: Path) -> None:
    divergence = compared(tmp_path, run(True), run(False))
    assert divergence is not None and divergence.record == MUL
    assert divergence.first.cause == f"input.0 is what {LINEAR} returned, and in the golden run what {TANH} returned"


@pytest.mark.parametrize("scales_first", [False, True])
@pytest.mark.parametrize("on_target", [False, True])
def test_another_order_is_said_beside_a_call_that_one_side_makes_more(
    tmp_path: Path, scales_first: bool, on_target: bool
) -> None:
    runs = [run(scales_first), run(not scales_first)]
    runs[0 if on_target else 1]["Functional.relu.1.forward"] = call([tensor(W)], tensor(np.maximum(W, 0)))
    divergence = compared(tmp_path, *runs)
    assert divergence is not None and divergence.record in (TANH, MUL)
    assert divergence.first.cause.startswith("input.0 is what ")
    assert divergence.first.reason.startswith("input.0 differs by")


def test_a_call_that_is_left_out_is_in_no_other_order(tmp_path: Path) -> None:
    whole_run, shorter = run(True), run(True)
    del shorter[MUL]
    x = np.tanh(X @ W)
    shorter[TANH] = call([tensor(X @ W)], tensor(x))
    shorter[RELU] = call([tensor(x)], tensor(np.maximum(x, 0)))
    divergence = compared(tmp_path, shorter, whole_run)
    assert divergence is not None and divergence.record == TANH
    assert divergence.first.cause == f"only the golden run calls {MUL}"


@pytest.mark.parametrize("on_target", [True, False])
def test_a_function_has_its_counterpart_in_the_same_module(tmp_path: Path, on_target: bool) -> None:
    weights = {"a": W, "b": W[::-1] * np.float32(1.5)}
    runs, trees = [], []
    for order in ("ba", "ab") if on_target else ("ab", "ba"):
        data: Run = {}
        tree: dict[str, str | None] = {}
        x = X
        for number, name in enumerate(order):
            function, module = f"Functional.linear.{number}.forward", f"Module.{name}.Linear.forward.0"
            y = x @ weights[name]
            data[function] = call([tensor(x), tensor(weights[name])], tensor(y))
            data[module] = call([tensor(x)], tensor(y), weight=tensor(weights[name]))
            tree = {**tree, module: None, function: module}
            x = y
        runs.append(data)
        trees.append(tree)
    divergence = compared(tmp_path, *runs, *trees)
    assert divergence is not None and divergence.record == LINEAR
    assert divergence.first.golden_record == "Functional.linear.1.forward"
    assert divergence.first.reason.startswith("input.0 differs")


GRADIENTS = "Module.fc.Linear.parameters_grad.0"
STEP, OF_BIAS = (f"Tensor.add_.{number}.forward" for number in range(2))


def trained(factor: float, hook: bool) -> Run:
    gradient, bias = W / np.float32(10), X[0]
    scaled_one = gradient * np.float32(factor)
    weight, moved = W, W - scaled_one
    data: Run = {"Module.fc.Linear.forward.0": call([tensor(X)], tensor(X @ W), weight=tensor(W), bias=tensor(bias))}
    data[GRADIENTS] = {"weight": [tensor(scaled_one)], "bias": [tensor(bias)]}
    if hook:
        data[MUL] = call([tensor(gradient)], tensor(scaled_one))
    data[STEP] = call([tensor(weight), tensor(scaled_one)], tensor(moved))
    data[OF_BIAS] = call([tensor(bias), tensor(bias)], tensor(bias * 0.9))
    return data


TREE: dict[str, str | None] = {"optimizer": None, STEP: "optimizer", OF_BIAS: "optimizer"}


@pytest.mark.parametrize("factors", [(2, 1), (1, 2)])
def test_a_gradient_diverges_though_the_one_beside_it_does_not(tmp_path: Path, factors: tuple[int, int]) -> None:
    divergence = compared(tmp_path, trained(factors[0], False), trained(factors[1], False), TREE)
    assert divergence is not None and divergence.record == GRADIENTS
    assert divergence.first.reason.startswith("weight differs by 5.0e-01 of its size")
