"""MindSpore warns of nothing because the tool is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import probe

PROGRAM = """
import sys
import numpy as np
import mindspore as ms
from mindspore import mint, nn, ops
from msprobe.mindspore import PrecisionDebugger, save, save_grad, seed_all, step

seed_all(7, mode=True, rm_dropout=True)
seed_all(7, mode=True)
seed_all(7, mode=False)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(3, 3), nn.LayerNorm((3,)), nn.Dropout(p=0.5), nn.ReLU())

    def construct(self, x):
        hidden = self.body(x)
        save("points", "hidden", hidden)
        return mint.sum(mint.matmul(save_grad("points", "grad", hidden), mint.ones((3, 2))))


net = Net()
optimizer = nn.SGD(net.trainable_params(), 0.1)
gradients = ms.value_and_grad(net, None, optimizer.parameters)
debugger = PrecisionDebugger(dump_path="dump", level="mix", task="tensor")
for _ in range(2):
    debugger.start(net)
    optimizer(gradients(ms.Tensor(np.ones((2, 3), np.float32)))[1])
    debugger.stop()
    debugger.step()
    step()
"""


def test_no_warning_of_mindspore_is_caused_by_the_tool(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    # Level 2 is what MindSpore logs where nothing else is set.
    environment = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1]), "GLOG_v": "2"}
    for name in ("HCCL_DETERMINISTIC", "TE_PARALLEL_COMPILER"):
        environment.pop(name, None)
    command = [sys.executable, "-W", "error:::probe", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Nor does the tool: nothing of this program is unusual.
    assert "[WARNING]" not in done.stdout + done.stderr
