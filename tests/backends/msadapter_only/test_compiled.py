"""A function that is compiled with ms.jit in a program of mindtorch.

mindtorch 0.5.1 lets MindSpore compile functions of MindSpore alone: its own cannot be read by the compiler, and take no
tensor that comes out of a graph.
"""

from __future__ import annotations

from typing import Any

import backend_msadapter  # first: it lets "torch" be mindtorch
import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import mint
from torch import nn

assert backend_msadapter


@ms.jit
def loss_of(x: Any) -> Any:
    return mint.sum(mint.tanh(x) * x)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_compiled_function_gives_the_same_bits(runs: Any, backend: Any, level: str) -> None:
    def work(start: Any) -> list[bytes]:
        rng = np.random.default_rng(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        for parameter in model.parameters():
            parameter.assign_value(ms.Tensor(rng.standard_normal(parameter.shape).astype(np.float32)))
        x = torch.tensor(rng.standard_normal((5, 3)).astype(np.float32))
        start(model)
        gradients = ms.value_and_grad(lambda x: loss_of(model(x)), None, list(model.parameters()))
        found = [gradients(x) for _ in range(2)]
        return [backend.numpy(value).tobytes() for loss, several in found for value in (loss, *several)]

    expected = work(lambda model: None)
    debugger = runs.new(level=level)
    found = work(debugger.start)
    debugger.stop()
    assert found == expected and len(found) == 6
    names = {"L0": ["Module.0.Linear"], "L1": ["Functional.linear"], "mix": ["Functional.linear", "Module.0.Linear"]}
    recorded = runs.read().names
    assert all(any(name.startswith(f"{base}.") for name in recorded) for base in names[level])
