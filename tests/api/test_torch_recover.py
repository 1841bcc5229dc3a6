"""A training that is killed at any moment: ``msprobe recover`` makes files that hold all that had happened."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import dumped
import pytest
import torch

from probe.api.cli import main

SEED = int(os.environ.get("PROBE_TEST_SEED", random.randrange(10**6)))
"""Set the variable to the number that a failing test has printed to kill at the same moments."""

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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def killed(scripts: Any, folder: Path, level: str, task: str, seconds: float) -> dict[int, list[str]]:
    """Run the training and kill it; the records it knows to have ended, by step."""
    config = {"task": task, "level": level, "risk_level": "ALL", "dump_path": str(folder / "dump"), task: {}}
    (folder / "config.json").write_text(json.dumps(config))
    ended = scripts.run(folder, TRAINING.format(level=level, task=task), kill_after=seconds)
    assert ended.status == -9 and ended.err == "", ended.err
    steps: dict[int, list[str]] = {}
    for line in ended.said[1:]:
        step, name = line.split(" ")
        steps.setdefault(int(step), []).append(name)
    return steps


MOMENTS = [(level, task, n) for n in range(2) for level in ("L0", "L1", "mix") for task in ("statistics", "tensor")]


@pytest.mark.parametrize(("level", "task", "number"), MOMENTS)
def test_nothing_that_had_ended_is_lost(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str, task: str, number: int
) -> None:
    # A first moment early, in the first steps; a second one anywhere.
    seconds = random.Random(f"{SEED} {level} {task} {number}").uniform(0, (0.06, 0.4)[number])
    print(f"PROBE_TEST_SEED={SEED}: killed after {seconds:.4f} s")
    known = killed(scripts, tmp_path, level, task, seconds)
    dump = tmp_path / "dump"
    journals = list(dump.rglob("dump.journal"))
    assert len(journals) <= 1, "a step that ended in order removes its journal"
    status = main(["recover", str(dump)]) if dump.exists() else 2
    said = capsys.readouterr()
    print(said.out, said.err)
    folders = sorted(dump.glob("step*/proc*"))
    print(f"records known to have ended: {sum(map(len, known.values()))} in {len(known)} steps")
    if status != 0:
        # Killed between two steps, or before the journal had its first frame.
        for journal in journals:
            assert journal.stat().st_size < 100 and int(journal.parent.parent.name[4:]) not in known
    else:
        assert str(journals[0].parent) in said.out and said.err == ""
    assert len(folders) >= len(known)
    for folder in folders:
        step = int(folder.parent.name[4:])
        if not (folder / "dump.json").exists():
            assert step not in known and not (folder / "dump.journal").exists(), "killed while the folder was made"
            continue
        found = dumped.Dump(folder)
        missing = [name for name in known.get(step, []) if name not in found.data]
        assert not missing, f"step {step}"
        if level != "L1":
            assert set(found.tree) >= {name for name in known.get(step, []) if "parameters_grad" not in name}
        in_stacks = {name for names, _ in found.stacks.values() for name in names}
        assert in_stacks >= {name for name in known.get(step, []) if ".forward" in name}
        named = [entry["data_name"] for entry in dumped.tensors(found.data) if "data_name" in entry]
        assert bool(named) == (task == "tensor" and bool(found.data))
        for name in named[-200:]:
            assert isinstance(torch.load(folder / "dump_tensor_data" / name, weights_only=True), torch.Tensor)
    before = contents(dump)
    assert main(["recover", str(dump)]) == status or not dump.exists()
    assert contents(dump) == before, "a second recover changes nothing"


def test_a_killed_run_recovers_to_what_a_finished_one_writes(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = TRAINING.format(level="mix", task="statistics").replace("range(10_000)", "range(1)")
    dumps = []
    for name, end in (("finished", ""), ("killed", "    os.kill(os.getpid(), 9)\n")):
        folder = tmp_path / name
        folder.mkdir()
        config = {"task": "statistics", "level": "mix", "risk_level": "ALL", "dump_path": str(folder / "dump")}
        (folder / "config.json").write_text(json.dumps({**config, "statistics": {}}))
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


def test_recover_without_anything_to_recover(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty" / "step0" / "rank0").mkdir(parents=True)
    for folder, match in [("empty", "holds no dump.journal"), ("missing", "is not a folder")]:
        assert main(["recover", str(tmp_path / folder)]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert said.err.startswith("msprobe recover: ") and str(tmp_path / folder) in said.err and match in said.err
