"""Gradients that are asked for inside of what is differentiated."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn


class Penalty(nn.Cell):
    """Its forward takes a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 1, weight_init="ones", bias_init="zeros")

    def construct(self, x: Any) -> Any:
        slope = ms.grad(lambda given: (self.dense(given) ** 2).sum(), 0)(x)
        return x * 2 + slope


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.penalty = Penalty()

    def construct(self, x: Any) -> Any:
        return self.penalty(x).sum()


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("leaf", [True, False], ids=["of an input", "of a result"])
def test_a_cell_that_takes_a_gradient_inside_has_its_own(runs: Any, level: str, leaf: bool) -> None:
    net, x = Net(), Tensor(np.ones((2, 3), np.float32))

    def program(given: Any) -> Any:
        return net(given if leaf else given * 1)

    (expected,) = {float(value) for value in ms.grad(program, 0)(x).asnumpy().ravel()}
    debugger = runs.new(level=level)
    debugger.start(net)
    found = ms.grad(program, 0)(x).asnumpy()
    debugger.stop()
    assert (found == expected).all()
    data = runs.read().data
    outer = data["Cell.penalty.Penalty.backward.0"]
    assert outer["input"][0]["Max"] == 1.0
    assert [entry and entry["Max"] for entry in outer["output"]] == [expected]
    assert data["Cell.penalty.dense.Dense.backward.0"]["input"][0]["Max"] == 6.0, "the inner gradient"
