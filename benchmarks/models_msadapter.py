"""One training step of the GPT of `models_torch`, with mindtorch in the place of torch."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch
from models_mindspore import measurable
from sizes import SIZES, Training

initialize_torch_proxy()  # From here on "import torch" means mindtorch.
setup_metadata_patch()

import torch  # noqa: E402
from models_torch import GPT  # noqa: E402


def training(name: str, optimizer: bool = False) -> Training:
    """Build the model of size `name`; a step is forward, cross-entropy, backward and, on request, an update."""
    measurable()
    size = SIZES[name]
    model = GPT(size)
    ids = np.random.default_rng(0).integers(size.vocabulary, size=(size.batch, size.length + 1))
    inputs, targets = torch.tensor(np.ascontiguousarray(ids[:, :-1])), torch.tensor(ids[:, 1:].reshape(-1))
    weights = list(model.parameters())

    def loss(ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(ids).view(-1, size.vocabulary), targets)

    differentiated = ms.value_and_grad(loss, None, weights)

    def step() -> None:
        _, gradients = differentiated(inputs)
        if optimizer:
            # No optimizer of mindtorch runs on the CPU.
            for weight, gradient in zip(weights, gradients):
                ms.ops.assign_sub(weight, ms.ops.mul(gradient, 1e-3))

    return Training(model, step)
