"""`msprobe acc_check` on a step of MSAdapter."""

from __future__ import annotations

import json
from pathlib import Path

import backend_msadapter  # noqa: F401 (makes torch a name of mindtorch)
import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F

from msprobe.mindspore import PrecisionDebugger
from probe.api.replaying import acc_check


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.linear = torch.nn.Linear(256, 8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.linear(torch.flatten(F.relu(self.conv(image)), 1))
        x = torch.matmul(x, torch.abs(x).reshape(8, -1)) * 0.5
        first, second = torch.split(F.gelu(x), 2, 0)
        return (torch.cat([first, second + 1.0], 1).pow(2)).mean()


def test_correct_kernels_pass_forward_and_backward(tmp_path: Path) -> None:
    config = {"task": "tensor", "level": "L1", "risk_level": "ALL", "dump_path": str(tmp_path / "dump"), "tensor": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    network = Network()
    image = torch.tensor(np.random.default_rng(3).normal(size=(4, 3, 8, 8)).astype(np.float32))
    # One of another test may be there.
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(str(tmp_path / "config.json"))
    debugger.start(network)
    ms.value_and_grad(lambda given: network(given), None, list(network.parameters()))(image)
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    (path,) = tmp_path.rglob("dump.json")
    report = acc_check(path, output=str(tmp_path / "tables"))
    assert {result.name: result.not_run for result in report.results if result.not_run} == {}
    assert {result.name: result.status for result in report.failed} == {}
    run = {result.base for result in report.results if result.rows}
    assert {"Functional.conv2d", "Functional.linear", "Torch.matmul", "Torch.split", "Tensor.pow"} <= run
