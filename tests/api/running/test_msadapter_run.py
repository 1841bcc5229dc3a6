"""``msprobe run`` with the torch API over MindSpore, where no optimizer works on the CPU."""

from __future__ import annotations

from pathlib import Path

from running import quick, run

PRELUDE = """
import mindspore as ms
import numpy as np
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

initialize_torch_proxy()
setup_metadata_patch()

import torch
from torch import nn

"""
PROGRAM = """
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

def loss(x):
    return net(x).sum()

gradient = ms.value_and_grad(loss, None, list(net.parameters()))
for step in range(3):
    value, gradients = gradient(torch.tensor(np.ones((5, 8), np.float32)))
    net(torch.tensor(np.ones((5, 8), np.float32)))
"""


def test_without_an_optimizer_a_step_ends_when_gradients_were_computed(tmp_path: Path) -> None:
    ran = run(tmp_path, PRELUDE + PROGRAM, "--step", "all")
    assert (ran.status, ran.steps) == (0, ["step0", "step1", "step2"]), ran.err
    forwards = ["Module.0.Linear.forward.0", "Module.1.ReLU.forward.0", "Module.2.Linear.forward.0"]
    assert ran.forwards(2) == forwards
    assert {"Functional.relu.0.forward", "Functional.relu.0.backward"} <= set(ran.data(2))


def test_layers_in_variables_of_their_own_are_models(tmp_path: Path) -> None:
    program = """
words, first, second = nn.Embedding(10, 8), nn.Linear(8, 6), nn.Sequential(nn.Sequential(nn.Linear(6, 4)))

def loss(x):
    return second(first(words(x))).sum()

gradient = ms.value_and_grad(loss, None, [p for layer in (words, first, second) for p in layer.parameters()])
for step in range(2):
    gradient(torch.tensor(np.arange(10).reshape(2, 5)))
"""
    ran = quick("msadapter", tmp_path, PRELUDE + program, "--level", "L0")
    assert (ran.status, ran.steps, ran.warnings) == (0, ["step0", "step1"], []), ran.err
    bases = ["Module.Embedding", "Module.model~2.Linear", "Module.model~3.0.0.Linear"]
    for step in (0, 1):
        expected = [f"{base}.forward.0" for base in (*bases, "Module.model~3.0.Sequential")]
        assert ran.forwards(step) == expected
        grads = {f"{base}.{what}.0" for base in bases for what in ("backward", "parameters_grad")}
        assert grads <= set(ran.data(step))
