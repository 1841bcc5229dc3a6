"""Models that are one layer of MindSpore, whatever MindSpore made it of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn


def batch() -> Any:
    return ms.Tensor(np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("make", "compute", "parameters"),
    [
        (lambda: nn.LSTM(4, 3), lambda cell: cell(batch())[0], {"weight_ih_l0", "weight_hh_l0"}),
        (lambda: nn.Dense(4, 2, activation="relu"), lambda cell: cell(batch()), {"weight", "bias"}),
        (
            lambda: nn.MultiheadAttention(4, 2),
            lambda cell: cell(batch(), batch(), batch())[0],
            {"in_proj_weight", "in_proj_bias"},
        ),
    ],
    ids=["lstm", "dense", "attention"],
)
def test_a_layer_of_mindspore_is_recorded_with_its_parameters(
    runs: Any, make: Callable[[], Any], compute: Callable[[Any], Any], parameters: set[str]
) -> None:
    debugger, cell = runs.new(level="L0"), make()
    debugger.start(cell)
    ms.value_and_grad(lambda: compute(cell).sum(), None, cell.trainable_params())()
    debugger.stop()
    base, data = f"Cell.{type(cell).__name__}", runs.read().data
    assert parameters <= set(data[f"{base}.forward.0"]["parameters"])
    assert parameters <= set(data[f"{base}.parameters_grad.0"])
    assert f"{base}.backward.0" in data


def test_a_sequence_of_cells_is_not_recorded_itself(runs: Any) -> None:
    debugger, cell = runs.new(level="L0"), nn.SequentialCell(nn.LSTM(4, 3))
    debugger.start(cell)
    cell(batch())
    debugger.stop()
    assert runs.read().names[-1] == "Cell.0.LSTM.forward.0"
