"""A training step whose numbers are known, for ``msprobe doctor``."""

from __future__ import annotations

from typing import Any

import mindspore as ms

EXPECTED = {
    "Cell.0.Dense.forward.0.output.0": 11.5,
    "Cell.0.Dense.backward.0.input.0": 23.0,
    "Cell.0.Dense.parameters_grad.0.weight": 92.0,
    "Tensor.__pow__.0.forward.output.0": 132.25,
    "Tensor.__pow__.0.backward.output.0": 23.0,
}
"""The largest element of items that the step has."""


def train(debugger: Any) -> None:
    """Collect one step: forward and backward of ``(3 * 1 + 4 * 2 + 0.5) ** 2``."""
    model = ms.nn.SequentialCell(ms.nn.Dense(2, 1), ms.nn.ReLU())
    model[0].weight.set_data(ms.Tensor([[1.0, 2.0]], ms.float32))
    model[0].bias.set_data(ms.Tensor([0.5], ms.float32))
    debugger.start(model)
    with_gradients = ms.value_and_grad(lambda x: (model(x) ** 2).sum(), None, model.trainable_params())
    with_gradients(ms.Tensor([[3.0, 4.0]], ms.float32))
    debugger.stop()
    debugger.step()
