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


@pytest.mark.parametrize(("scales_first", "record", "theirs"), [(False, TANH, MUL), (True, MUL, TANH)])
def test_another_order_of_calls_is_said(tmp_path: Path, scales_first: bool, record: str, theirs: str) -> None:
    divergence = compared(tmp_path, run(scales_first), run(not scales_first))
    assert divergence is not None and divergence.record == record
    assert divergence.first.cause == f"input.0 is what {LINEAR} returned, and in the golden run what {theirs} returned"


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
