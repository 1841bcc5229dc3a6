"""A disk that is full or read-only, a folder that goes away, no file left to open, another run in the same folder."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import dumped
import pytest
import torch
from trainings import write_config

from probe.api.cli import main

# Each starts programs: some are drawn, and `make reliability` runs all.
pytestmark = pytest.mark.sampled(least=7, each=False, group="broken disks")

TRAINING = """
import ctypes, os, resource, shutil, sys, torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger

def say(*words):
    os.write(1, ("> " + " ".join(map(str, words)) + "\\n").encode())

def mount(options, flags=0):
    # In a name space of its own, which ends with this process; without root in a user name space.
    libc, uid, gid = ctypes.CDLL(None), os.getuid(), os.getgid()
    done = libc.unshare(0x20000 | (0x10000000 if uid else 0)) == 0
    if done and uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {{uid}} 1"), ("gid_map", f"0 {{gid}} 1")):
            with open(f"/proc/self/{{name}}", "w") as stream:
                stream.write(text)
    os.makedirs("dump")
    done = done and libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None) == 0
    if not done or libc.mount(b"tmpfs", b"dump", b"tmpfs", flags, options) != 0:
        say("cannot mount")
        sys.exit()

def train(debugger, middle=lambda step: None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    losses = []
    for step in range(4):
        if debugger:
            debugger.start(net)
        x = torch.sin(net(torch.randn(8, 16)))
        middle(step)
        loss = net(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if debugger:
            debugger.stop()
            debugger.step()
    return losses, [p.tolist() for p in net.parameters()], torch.get_rng_state().tolist()

expected = train(None)
debugger = PrecisionDebugger("config.json")
{work}
say("same" if found == expected else "other")
if os.path.exists("dump"):
    shutil.copytree("dump", "left")
"""


def run(scripts: Any, folder: Path, work: str, task: str = "tensor", **more: Any) -> Any:
    write_config(folder, task, "mix")
    ended = scripts.run(folder, TRAINING.format(work=work), **more)
    if "cannot mount" in ended.said:
        pytest.skip("neither root nor a user name space, so no file system can be mounted here")
    assert ended.status == 0 and ended.said == ["same"] and ended.err == "", ended.err
    ended.lines = re.findall(r"\[(?:WARNING|ERROR)\] (.*)", ended.log)
    return ended


def readable(folder: Path) -> list[str]:
    """Recover; every file is valid and every tensor file that is named loads. The steps that have records."""
    if list(folder.rglob("dump.journal")):
        assert main(["recover", str(folder)]) == 0
    steps = []
    for path in sorted(folder.glob("step*/*")):
        if not (path / "dump.json").exists():
            # There was no room for its files when it began, so nothing was collected.
            assert not [file for file in path.rglob("*") if file.is_file()]
            continue
        dump = dumped.Dump(path)
        for entry in dumped.tensors(dump.data):
            if "data_name" in entry:
                torch.load(path / "dump_tensor_data" / entry["data_name"], weights_only=True)
        if dump.names:
            steps.append(path.parent.name)
    return steps


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_full_disk(scripts: Any, tmp_path: Path, task: str) -> None:
    size = {"tensor": 300_000, "statistics": 100_000}[task]
    ended = run(scripts, tmp_path, f"mount(b'size={size}')\nfound = train(debugger)", task)
    assert all("No space left on device" in line for line in ended.lines), ended.lines
    # The first loss, the files that cannot be made from what is there, the steps that cannot begin, and how much it is.
    assert 2 <= len(ended.lines) <= 5 and ended.lines[-1].startswith("not everything was collected. step"), ended.lines
    assert readable(tmp_path / "left")[:1] == ["step0"]


UNDER_RUN = """
import contextlib, io, os, resource, sys
{limit}
from probe.api.cli import main
status = main(["run", "-o", "dump/out", "--task", {task!r}, "--step", "all", "--strict", "program.py"])
if os.path.exists("dump"):
    import shutil
    shutil.copytree("dump", "left")
sys.exit(status)
"""
PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for step in range(3):
    net(torch.randn(8, 16)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("> step", step)
{end}
"""


def run_command(scripts: Any, folder: Path, task: str, limit: str, end: str = "") -> Any:
    """A training under ``msprobe run`` with a limit on what it can write; all it prints reaches standard output."""
    (folder / "program.py").write_text(PROGRAM.format(end=end))
    mount = TRAINING[TRAINING.index("def say") : TRAINING.index("def train")].replace("{{", "{").replace("}}", "}")
    ended = scripts.run(folder, UNDER_RUN.format(task=task, limit=f"import ctypes\n{mount}\n{limit}"))
    if "cannot mount" in ended.said:
        pytest.skip("neither root nor a user name space, so no file system can be mounted here")
    assert ended.said == [f"step {n}" for n in range(3)], ended.err
    ended.lines = [line.partition("] ")[2] for line in ended.log.splitlines()]
    return ended


@pytest.mark.parametrize(("task", "size"), [("statistics", 30_000), ("tensor", 100_000)])
def test_the_command_ends_with_how_much_is_missing_on_a_full_disk(
    scripts: Any, tmp_path: Path, task: str, size: int
) -> None:
    """The step whose records did not fit is not said to be collected, and its number of losses is right."""
    whole = tmp_path / "whole"
    whole.mkdir()
    ended = run_command(scripts, whole, task, "")
    assert ended.status == 0 and "collected steps 0-2" in ended.log and "not everything" not in ended.log
    expected = [names(whole / "dump" / "out", step) for step in range(3)]

    full = tmp_path / "full"
    full.mkdir()
    ended = run_command(scripts, full, task, f"mount(b'size={size}')")
    assert ended.status == 0 and ended.err == ""
    last = ended.lines[-1]
    assert last.startswith("not everything was collected. step 0: ") and "No space left on device" in last
    assert "steps 1-2: the folder could not be made" in last and "collected step" not in ended.log
    assert main(["recover", str(full / "left")]) == 0
    missing = expected[0] - names(full / "left" / "out", 0)
    told = int(re.search(r"step 0: (\d+) records or tensor files are missing or incomplete", last)[1])
    # One record more may lack only its stack, or its place in the tree; and the update is missing.
    assert len(missing) <= told <= len(missing) + 3, (told, missing)
    assert f"`msprobe recover {full / 'dump' / 'out'}`" in last


def names(root: Path, step: int) -> set[str]:
    """The records and the tensor files of a step."""
    (folder,) = root.glob(f"step{step}/*")
    dump = dumped.Dump(folder)
    return {*dump.names, *(path.name for path in folder.glob("dump_tensor_data/*"))}


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise SystemExit(7)", 7)])
def test_files_that_may_not_be_large_leave_the_status_to_the_script(
    scripts: Any, tmp_path: Path, end: str, status: int
) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))"
    ended = run_command(scripts, tmp_path, "statistics", limit, end)
    assert ended.status == status and ended.lines[-1].count("File too large") == 1
    text = r"not everything was collected\. steps 0-2: \d+ records or tensor files are missing or incomplete"
    assert re.match(text, ended.lines[-1]), ended.lines


def test_a_disk_without_room_for_one_file_has_nothing_that_looks_like_a_dump(scripts: Any, tmp_path: Path) -> None:
    ended = run_command(scripts, tmp_path, "statistics", "mount(b'size=4k')")
    assert ended.status == 2, "nothing was collected, and the command was asked to be strict"
    assert "msprobe run collected nothing: it could not be written" in ended.lines[-1]
    assert "steps 0-2: the folder could not be made (No space left on device)" in ended.lines[-2]
    assert not [path for path in (tmp_path / "left").rglob("*") if path.is_file()]


def test_a_step_that_is_not_finite_and_cannot_be_written_is_told(scripts: Any, tmp_path: Path) -> None:
    end = "torch.log(net(torch.randn(8, 16)) * 0 - 1).sum().backward()\noptimizer.step()"
    ended = run_command(scripts, tmp_path, "overflow_check", "mount(b'size=4k')", end)
    assert ended.status == 2 and not any("were watched, and none" in line for line in ended.lines)
    assert "step 3: it has a value that is not finite, and its folder could not be made" in ended.lines[-2]


def test_a_read_only_folder(scripts: Any, tmp_path: Path) -> None:
    ended = run(scripts, tmp_path, "mount(None, 1)\nfound = train(debugger)")
    line, last = ended.lines
    assert "step 0 is not collected: its folder cannot be written" in line and "Read-only file system" in line
    assert last == "not everything was collected. steps 0-3: the folder could not be made (Read-only file system)."
    assert "Later steps are not collected either" in line and list((tmp_path / "left").iterdir()) == []


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_folder_that_is_removed_while_it_is_written(scripts: Any, tmp_path: Path, task: str) -> None:
    work = "found = train(debugger, lambda step: shutil.rmtree('dump') if step == 1 else None)"
    ended = run(scripts, tmp_path, work, task)
    assert 2 <= len(ended.lines) <= 3 and all("No such file or directory" in line for line in ended.lines), ended.lines
    assert "the files of step 1 cannot be written" in ended.lines[-2]
    # There is no journal either.
    assert "everything was collected. step 1: " in ended.lines[-1] and "recover" not in ended.lines[-1]
    assert readable(tmp_path / "left") == ["step2", "step3"]


@pytest.mark.parametrize("lay", ["open('dump/step1', 'w').close()", "os.symlink(os.getcwd() + '/other', 'dump/step1')"])
def test_a_steps_folder_whose_place_is_taken(scripts: Any, tmp_path: Path, lay: str) -> None:
    (tmp_path / "other").mkdir()
    ended = run(scripts, tmp_path, f"found = train(debugger, lambda step: {lay} if step == 0 else None)")
    line, last = ended.lines
    assert "step 1 is not collected: its folder cannot be written" in line and str(tmp_path / "dump" / "step1") in line
    assert last.startswith("not everything was collected. step 1: the folder could not be made (")
    assert readable(tmp_path / "left") == ["step0", "step2", "step3"] and not list((tmp_path / "other").iterdir())


@pytest.mark.parametrize("lay", ["open('dump', 'w').close()", "os.symlink('elsewhere', 'dump')"])
def test_a_dump_path_that_is_wrong_from_the_beginning_is_an_error(scripts: Any, tmp_path: Path, lay: str) -> None:
    config = {"task": "statistics", "level": "L1", "dump_path": str(tmp_path / "dump"), "statistics": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ended = scripts.run(tmp_path, TRAINING.format(work=f"{lay}\nfound = train(debugger)"))
    assert ended.status == 1 and "FileCheckException" in ended.err and str(tmp_path / "dump") in ended.err


def test_no_file_left_to_open(scripts: Any, tmp_path: Path) -> None:
    work = """
most = resource.getrlimit(resource.RLIMIT_NOFILE)
def middle(step):
    number = len(os.listdir("/proc/self/fd")) - 1 if step == 1 else most[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, most[1]))
found = train(debugger, middle)
"""
    ended = run(scripts, tmp_path, work)
    # The first loss in each of two steps, for the limit ends in the middle of one, and the files that cannot be made.
    assert 2 <= len(ended.lines) <= 4 and all("Too many open files" in line for line in ended.lines), ended.lines
    assert readable(tmp_path / "left") == [f"step{n}" for n in range(4)]


def test_a_second_run_keeps_away_from_a_folder_that_is_being_written(scripts: Any, tmp_path: Path) -> None:
    write_config(tmp_path)
    ended = scripts.run(tmp_path, TWO_RUNS)
    assert ended.status == 0 and ended.err == "", ended.err
    line, last = re.findall(r"\[(?:WARNING|ERROR)\] (.*)", ended.log)
    assert "step 0: the folder could not be made (another process is collecting into this folder)" in last
    assert "another process is collecting into this folder" in line and "is not collected" in line
    assert dumped.read(tmp_path / "dump", 0, "rank3").names == ["Torch.relu.0.forward"]


TWO_RUNS = """
import os, torch
from msprobe.pytorch import PrecisionDebugger

ready, go = os.pipe(), os.pipe()
second = os.fork()
if second == 0:
    os.read(ready[0], 1)
debugger = PrecisionDebugger("config.json")
debugger.start(rank_id=3)
(torch.relu if second else torch.abs)(torch.ones(1))
if second:
    os.write(ready[1], b".")
    os.waitpid(second, 0)
debugger.stop()
debugger.step()
"""


def test_processes_side_by_side(scripts: Any, tmp_path: Path) -> None:
    world = 8 if os.environ.get("PROBE_TEST_LONG") == "1" else 2
    write_config(tmp_path, "tensor", "mix")
    ended = scripts.run(tmp_path, RANKS.format(world=world, wait=60), copies=world)
    assert [process.status for process in ended] == [0] * world, ended[0].err
    assert "ERROR" not in ended[0].log
    for step in range(2):
        names = [dumped.read(tmp_path / "dump", step, f"rank{rank}").names for rank in range(world)]
        assert names[0] and names == [names[0]] * world
    assert len(dumped.folders(tmp_path / "dump")) == 2 * world


def test_a_rank_that_never_starts_costs_the_others_nothing_that_they_have(scripts: Any, tmp_path: Path) -> None:
    write_config(tmp_path)
    code = RANKS.format(world=3, wait=2).replace("dist.init", "debugger.start()\ntorch.abs(torch.ones(1))\ndist.init")
    ended = scripts.run(tmp_path, code, copies=2)
    assert [process.status for process in ended] == [1, 1] and "ERROR" not in ended[0].log
    assert "Error" in ended[0].err, "the program gets what it would get without the tool"
    for process in ended:
        assert dumped.read(tmp_path / "dump", 0, f"proc{process.pid}").names == ["Torch.abs.0.forward"]


RANKS = """
import datetime, os, torch, torch.distributed as dist
from torch import nn
from msprobe.pytorch import PrecisionDebugger

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
for rank in range(8):
    try:
        os.close(os.open(f"taken{{rank}}", os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        pass
debugger = PrecisionDebugger("config.json")
wait = datetime.timedelta(seconds={wait})
dist.init_process_group("gloo", f"file://{{os.getcwd()}}/store", rank=rank, world_size={world}, timeout=wait)
net = nn.Sequential(nn.Linear(4, 4))
for step in range(2):
    debugger.start(net)
    net(torch.ones(1, 4)).sum().backward()
    dist.all_reduce(net[0].weight.grad)
    debugger.stop()
    debugger.step()
dist.barrier()
dist.destroy_process_group()
"""
