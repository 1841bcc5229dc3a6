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


@pytest.mark.parametrize(("probabilities", "is_explained"), [(1 / 12, True), (1e-4, False)])
def test_a_softmax_of_one_side_explains_what_cancels_in_its_gradient(
    tmp_path: Path, probabilities: float, is_explained: bool
) -> None:
    """The other side computes attention in one kernel, which does not round the terms to the short type."""
    random = np.random.default_rng(4)
    names = ("Module.attn.Attention", "Module.attn.key.Linear", "Functional.linear", "Functional.softmax")
    attention, key = (f"{each}.backward.0" for each in names[:2])
    linear, softmax = f"{names[2]}.0.backward", f"{names[3]}.0.backward"
    chances = short(np.full((16, 144), probabilities) * (1 + 0.1 * random.normal(size=(16, 144))))
    given = short(random.normal(size=(16, 144)))
    scores = short(1e-3 * random.normal(size=(16, 144)))
    gradient = random.normal(size=(16, WIDTH))
    apart = short(gradient * 0.8), short(gradient)
    sides: list[Run] = []
    for number, of_key in enumerate(apart):
        data: Run = {}
        if not number:
            data[softmax.replace("backward", "forward")] = call([tensor(scores, SHORT)], tensor(chances, SHORT))
            data[softmax] = backward([tensor(given, SHORT)], tensor(scores, SHORT))
        data[linear] = backward([tensor(of_key, SHORT)], tensor(of_key, SHORT))
        data[key] = backward([tensor(of_key, SHORT)], tensor(of_key, SHORT))
        data[attention] = backward([tensor(given, SHORT)], tensor(given, SHORT))
        sides.append(data)
    tree = {softmax: attention, linear: key, key: attention, attention: None}
    found = compared(tmp_path, *sides, tree)
    assert (found is None) is is_explained, found
