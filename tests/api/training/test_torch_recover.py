"""``msprobe recover`` after a kill; kills at random moments stand in ``tests/reliability``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dumped
import pytest
from trainings import write_config

from probe.api.cli import main

TRAINING = """
import os, torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger

def say(*words):
    os.write(1, ("> " + " ".join(words) + "\\n").encode())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.act = nn.Tanh()

    def forward(self, x):
        return torch.sin(self.act(self.fc(x)))

LEVEL, TASK = {level!r}, {task!r}
debugger = PrecisionDebugger("config.json")
net, x = Net(), torch.ones(4, 8, requires_grad=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
say("begin")
for step in range(10_000):
    debugger.start(net)
    for n in range(10):
        loss = net(x).sum()
        if LEVEL != "L1":
            say(str(step), f"Module.fc.Linear.forward.{{n}}")
            say(str(step), f"Module.act.Tanh.forward.{{n}}")
        if LEVEL != "L0":
            say(str(step), f"Torch.sin.{{n}}.forward")
            say(str(step), f"Tensor.sum.{{n}}.forward")
        loss.backward()
        if LEVEL != "L1":
            say(str(step), f"Module.act.Tanh.backward.{{n}}")
            say(str(step), f"Module.fc.Linear.backward.{{n}}")
            say(str(step), f"Module.fc.Linear.parameters_grad.{{n}}")
        if LEVEL != "L0":
            say(str(step), f"Torch.sin.{{n}}.backward")
            say(str(step), f"Tensor.sum.{{n}}.backward")
        optimizer.step()
    debugger.stop()
    debugger.step()
"""


def test_a_killed_run_recovers_to_what_a_finished_one_writes(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = TRAINING.format(level="mix", task="statistics").replace("range(10_000)", "range(1)")
    dumps = []
    for name, end in (("finished", ""), ("killed", "    os.kill(os.getpid(), 9)\n")):
        folder = tmp_path / name
        folder.mkdir()
        write_config(folder, level="mix")
        text = code.replace("torch.ones", "torch.manual_seed(1) and torch.ones")
        text = text.replace("net, x = Net(), ", "torch.manual_seed(1)\nnet, x = Net(), ")
        text = text.replace("    debugger.stop()\n", end or "    debugger.stop()\n")
        assert scripts.run(folder, text).status == (-9 if end else 0)
        if end:
            (skeleton,) = (folder / "dump").rglob("dump.json")
            assert json.loads(skeleton.read_text())["data"] == {}
            assert main(["recover", str(folder / "dump"), "--remove"]) == 0
            assert not list(folder.rglob("dump.journal"))
        dumps.append(dumped.read(folder / "dump"))
    finished, recovered = dumps
    assert {"Module.fc.Linear.backward.9", "Torch.sin.9.forward", "Tensor.sum.9.backward"} <= set(finished.names)
    assert finished.data == recovered.data and finished.tree == recovered.tree
    assert [names for names, _ in finished.stacks.values()] == [names for names, _ in recovered.stacks.values()]
