"""A training step whose numbers are known, for ``msprobe doctor``."""

from __future__ import annotations

from typing import Any

import mindspore as ms

from probe.backends.msadapter.hooks import torch_module

EXPECTED = {
    "Module.0.Linear.forward.0.output.0": 11.5,
    "Module.0.Linear.backward.0.input.0": 23.0,
    "Module.0.Linear.parameters_grad.0.weight": 92.0,
    "Tensor.__pow__.0.forward.output.0": 132.25,
    "Tensor.__pow__.0.backward.output.0": 23.0,
}
"""The largest element of items that the step has."""


def train(debugger: Any) -> None:
    """Collect one step: forward and backward of ``(3 * 1 + 4 * 2 + 0.5) ** 2``."""
    torch = torch_module()
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        model[0].bias.copy_(torch.tensor([0.5]))
    debugger.start(model)
    with_gradients = ms.value_and_grad(lambda x: (model(x) ** 2).sum(), None, list(model.parameters()))
    with_gradients(torch.tensor([[3.0, 4.0]]))
    debugger.stop()
    debugger.step()
