"""Processes that share a dump path, fork, end early, or follow one that died."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dumped
import pytest
from trainings import write_config

# Each starts programs: of the parameters of a test one set is drawn, and `make reliability` runs all.
pytestmark = pytest.mark.sampled(least=1, each=False)

PRELUDE = """
import os, signal, sys, torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger

def say(*words):
    os.write(1, ("> " + " ".join(map(str, words)) + "\\n").encode())

debugger = PrecisionDebugger("config.json")
x = torch.ones(2, 4)
"""


def run(scripts: Any, folder: Path, code: str, level: str = "L1", **more: Any) -> Any:
    write_config(folder, level=level)
    return scripts.run(folder, PRELUDE + code, **more)


def relus(*numbers: int) -> list[str]:
    return [f"Torch.relu.{n}.forward" for n in numbers]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


COMPLETE = ["construct.json", "dump.json", "sketch.npz", "stack.json"]


def test_two_processes_share_a_dump_path(scripts: Any, tmp_path: Path) -> None:
    code = """
for step in range(3):
    debugger.start()
    for _ in range(20):
        torch.relu(x)
    debugger.stop()
    debugger.step()
"""
    ended = run(scripts, tmp_path, code, copies=3)
    assert [process.status for process in ended] == [0, 0, 0], ended[0].err
    for step in range(3):
        for process in ended:
            dump = dumped.read(tmp_path / "dump", step, f"proc{process.pid}")
            assert dump.names == relus(*range(20)) and dump.journals == []
    assert len(dumped.folders(tmp_path / "dump")) == 9


@pytest.mark.parametrize("end", ["sys.exit()", "os._exit(0)", "raise ValueError", "os.kill(os.getpid(), 9)"])
def test_a_child_forked_while_collecting_changes_nothing_of_its_parents(scripts: Any, tmp_path: Path, end: str) -> None:
    code = f"""
net = nn.Linear(4, 4)
debugger.start(net)
torch.relu(x)
child = os.fork()
if child == 0:
    net(torch.relu(x)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    debugger.stop()
    debugger.start(net)
    torch.relu(x)
    debugger.step()
    say("child done")
    {end}
os.waitpid(child, 0)
torch.relu(x)
debugger.stop()
debugger.step()
debugger.start(net)
torch.relu(x)
debugger.stop()
debugger.step()
"""
    ended = run(scripts, tmp_path, code, level="mix")
    assert ended.status == 0 and ended.said == ["child done"]
    assert ("Traceback" in ended.err) == ("ValueError" in end), ended.err
    assert dumped.folders(tmp_path / "dump") == ["step0/procN", "step1/procN"]
    dump = dumped.read(tmp_path / "dump")
    assert dump.names == relus(0, 1) and list(dump.tree) == relus(0, 1) and dump.journals == []
    assert dumped.read(tmp_path / "dump", 1).names == relus(0)
    assert "ERROR" not in ended.log


def test_workers_of_a_data_loader_write_nothing(scripts: Any, tmp_path: Path) -> None:
    code = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return torch.relu(torch.ones(2) * index)

loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")
debugger.start()
for batch in loader:
    torch.sin(batch)
debugger.stop()
debugger.step()
say(len(loader))
"""
    ended = run(scripts, tmp_path, code)
    assert ended.status == 0 and ended.said == ["3"], ended.err
    dump = dumped.read(tmp_path / "dump")
    assert [name for name in dump.names if "sin" in name] == [f"Torch.sin.{n}.forward" for n in range(3)]
    assert not [name for name in dump.names if "relu" in name]
    assert dumped.folders(tmp_path / "dump") == ["step0/procN"] and dump.errors == ""


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('mine')", 1),
        ("raise KeyboardInterrupt", -2),
        ("os.kill(os.getpid(), signal.SIGINT)", -2),
        ("nn.Linear(3, 3)(x)", 1),
        ("debugger.stop(); sys.exit(4)", 4),
        ("debugger.stop(); debugger.step(); sys.exit(5)", 5),
    ],
)
def test_a_training_that_ends_early_leaves_complete_files(scripts: Any, tmp_path: Path, end: str, status: int) -> None:
    code = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        y = torch.relu(self.fc(x))
        {end}
        return y

net = nn.Sequential(Net())
debugger.start(net)
net(x)
"""
    ended = run(scripts, tmp_path, code, level="mix")
    assert ended.status == status, ended.err
    (folder,) = (tmp_path / "dump" / "step0").iterdir()
    assert files(folder) == COMPLETE, ended.log
    dump = dumped.Dump(folder)
    # A module that was open when collection stopped keeps its inputs.
    assert {"Module.0.fc.Linear.forward.0", *relus(0)} <= set(dump.names)
    assert dump.tree["Torch.relu.0.forward"] == "Module.0.Net.forward.0" and "dump.json is at" in ended.log


AGAIN = "debugger.start(rank_id=3)\nfor _ in range({count}):\n    torch.relu(x)\n"


def test_a_second_run_warns_and_overwrites(scripts: Any, tmp_path: Path) -> None:
    first = run(scripts, tmp_path, AGAIN.format(count=5))
    second = run(scripts, tmp_path, AGAIN.format(count=2))
    folder = tmp_path / "dump" / "step0" / "rank3"
    assert "WARNING" not in first.log
    assert re.search(rf"\[rank 3\] \[WARNING\] {folder} holds an earlier dump", second.log)
    assert dumped.Dump(folder).names == relus(0, 1) and files(folder) == COMPLETE


def test_the_journals_of_runs_that_died_are_kept_aside(scripts: Any, tmp_path: Path) -> None:
    folder = tmp_path / "dump" / "step0" / "rank3"
    left = []
    for count, number in ((5, 9), (4, 15)):
        died = run(scripts, tmp_path, AGAIN.format(count=count) + f"os.kill(os.getpid(), {number})\n")
        assert died.status == -number
        left.append((folder / "dump.journal").read_bytes())
    second = run(scripts, tmp_path, AGAIN.format(count=2))
    dump = dumped.Dump(folder)
    assert second.status == 0 and dump.names == relus(0, 1)
    assert sorted((folder / name).read_bytes() for name in dump.journals) == sorted(left)
    warning = re.search(r"\[WARNING\] a run that died left a journal here; it is kept as ([^\s,]+)", second.log)
    assert warning and Path(warning[1]).name in dump.journals
