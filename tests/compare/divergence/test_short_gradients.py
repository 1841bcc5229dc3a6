"""Gradients of parameters that a kernel adds up row by row in bfloat16, as PyTorch's `layer_norm` does on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, backward, call, compared, tensor
from numpy.typing import NDArray

ROWS, WIDTH, SHORT = 2048, 64, "torch.bfloat16"


def short(array: Any) -> NDArray[np.float32]:
    """Rounded to bfloat16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def run(function: str, rounds_each: bool) -> Run:
    random = np.random.default_rng(3)
    x, gradient = (short(random.normal(size=(ROWS, WIDTH))) for _ in range(2))
    weight = short(np.ones(WIDTH))
    total = np.zeros(WIDTH, np.float32)
    for row in gradient:
        total = short(total + row) if rounds_each else total + row
    given = [tensor(each, SHORT) for each in (x, weight, weight)]
    return {
        f"Functional.{function}.0.forward": call(given, tensor(x, SHORT)),
        f"Functional.{function}.0.backward": backward(
            [tensor(gradient, SHORT)],
            tensor(gradient, SHORT),
            tensor(weight, SHORT),
            tensor(short(total), SHORT),
        ),
    }


@pytest.mark.parametrize(("function", "is_explained"), [("layer_norm", True), ("batch_norm", False)])
def test_partial_sums_in_the_short_type_explain_the_gradients_of_functions_that_make_them(
    tmp_path: Path, function: str, is_explained: bool
) -> None:
    found = compared(tmp_path, run(function, True), run(function, False))
    assert (found is None) is is_explained, found


def test_they_do_not_explain_a_gradient_of_twice_the_size(tmp_path: Path) -> None:
    target, golden = run("layer_norm", False), run("layer_norm", False)
    *others, last = target["Functional.layer_norm.0.backward"]["output"]
    doubled = {key: 2 * last[key] for key in ("Max", "Min", "Mean", "Norm")}
    target["Functional.layer_norm.0.backward"]["output"] = [*others, {**last, **doubled}]
    found = compared(tmp_path, target, golden)
    assert found is not None and found.record == "Functional.layer_norm.0.backward"
