"""``msprobe run`` with the torch API over MindSpore, where no optimizer works on the CPU."""

from __future__ import annotations

from pathlib import Path

from running import run

PROGRAM = """
import mindspore as ms
import numpy as np
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

initialize_torch_proxy()
setup_metadata_patch()

import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

def loss(x):
    return net(x).sum()

gradient = ms.value_and_grad(loss, None, list(net.parameters()))
for step in range(3):
    value, gradients = gradient(torch.tensor(np.ones((5, 8), np.float32)))
    net(torch.tensor(np.ones((5, 8), np.float32)))
"""


def test_without_an_optimizer_a_step_ends_when_gradients_were_computed(tmp_path: Path) -> None:
    ran = run(tmp_path, PROGRAM, "--step", "all")
    assert (ran.status, ran.steps) == (0, ["step0", "step1", "step2"]), ran.err
    forwards = ["Module.0.Linear.forward.0", "Module.1.ReLU.forward.0", "Module.2.Linear.forward.0"]
    assert ran.forwards(2) == forwards
    assert {"Functional.relu.0.forward", "Functional.relu.0.backward"} <= set(ran.data(2))
