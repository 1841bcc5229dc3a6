"""Trainings whose memory is limited (RLIMIT_AS): ``python tests/reliability/memory.py --limits 24 --seed 1``.

First it is found out how much memory a training needs alone and with the tool. Then it runs with the tool, each time in
a fork of this process, under limits drawn from around and between the two. The tool fails to get memory there at all
kinds of moments; nothing stands in for that. Held against what was promised:

* A training ends with bitwise the losses and parameters that it has alone, certainly once there is what was found to be
  needed for both. Below that it may get PyTorch's own error for an allocation that failed, as it does alone where there
  is too little, and no other; no process is ended by a signal.
* The tool needs no more than `ROOM`, and ``async_dump_max_mib`` where that is on.
* Every record that had ended is in the files, which `recover` makes where the tool could not, or the log names it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "backends" / "support")]

import dumped
import kills
import torch
from torch import nn

from msprobe.pytorch import PrecisionDebugger
from probe.backends import loader

TASKS = ("statistics", "md5", "tensor", "async")
ROOM = 32
"""MiB that suffice for the tool itself: its own objects, and copies of tensors, which the heap does not give back."""
HELD = 16
"""MiB of ``async_dump_max_mib``."""
WIDTH = 512
"""A tensor of float32 has 1 MiB, the largest one of a step 4."""
SLACK = 8 << 20
"""Bytes by which equal trainings differ in what they need, as the heap has other gaps: two of the largest tensors."""
STEPS = 3
NO_MEMORY = ("can't allocate memory", "not enough memory", "Cannot allocate memory", "std::bad_alloc")


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.act = nn.Tanh()

    def forward(self, x: Any) -> Any:
        # Not contiguous: to read it as bytes, or to write it, takes a copy.
        turned = torch.sin(self.act(self.fc(x)).t())
        return torch.cat([turned, turned, turned, turned])


@dataclass
class Run:
    """What a training said of itself."""

    ended: bool = False
    error: str = ""
    values: list[str] = field(default_factory=list)
    records: list[tuple[str, str]] = field(default_factory=list)
    """The step and the name of every record that had ended."""


def _train(folder: Path, task: str | None, extra: int, pipe: int) -> None:
    def say(*words: object) -> None:
        os.write(pipe, (" ".join(map(str, words)) + "\n").encode())

    status = Path("/proc/self/status").read_text().splitlines()
    before = next(int(line.split()[1]) for line in status if line.startswith("VmSize")) << 10
    debugger = PrecisionDebugger(str(folder / "config.json")) if task else None
    torch.manual_seed(1)
    net, x = _Net(), torch.rand(WIDTH, WIDTH, requires_grad=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    resource.setrlimit(resource.RLIMIT_AS, (before + extra, resource.RLIM_INFINITY))
    try:
        for step in range(STEPS):
            if debugger is not None:
                debugger.start(net)
            out = net(x)
            say(step, "Module.fc.Linear.forward.0")
            say(step, "Module.act.Tanh.forward.0")
            say(step, "Torch.sin.0.forward")
            say(step, "Torch.cat.0.forward")
            loss = out.mean()
            say(step, "Tensor.mean.0.forward")
            loss.backward()
            say(step, "Torch.sin.0.backward")
            say(step, "Module.act.Tanh.backward.0")
            optimizer.step()
            optimizer.zero_grad()
            if debugger is not None:
                debugger.stop()
                debugger.step()
            say("value", loss.item().hex(), net.fc.weight.double().sum().item().hex())
        say("ended")
    except (MemoryError, RuntimeError) as error:
        say("error", type(error).__name__, " ".join(str(error).split())[:300])


def run(folder: Path, task: str | None, extra: int) -> Run:
    """Train in `folder` with `extra` bytes more than there are in use when it begins."""
    folder.mkdir(parents=True)
    settings: dict[str, Any] = {"list": ["."] if task == "async" else []}
    if task in ("statistics", "md5"):
        settings["summary_mode"] = task
    name = "tensor" if task in ("tensor", "async") else "statistics"
    config = {"task": name, "level": "mix", "risk_level": "ALL", "dump_path": str(folder / "dump"), name: settings}
    config.update({"async_dump": task == "async", "async_dump_max_mib": HELD})
    (folder / "config.json").write_text(json.dumps(config))
    process, pipe = kills._fork(folder, lambda end: _train(folder, task, extra, end))
    status = kills._ended(process, time.monotonic() + 120)
    ear = kills._Ear(pipe)
    lines = ear.lines()
    ear.close()
    assert status == 0, f"{task}, {extra} bytes: it ended with {status}: {(folder / 'out.txt').read_text()}"
    found = Run()
    for first, *rest in lines:
        if first == "ended":
            found.ended = True
        elif first == "error":
            found.error = " ".join(rest)
        elif first == "value":
            found.values.append(" ".join(rest))
        else:
            found.records.append((first, *rest))  # type: ignore[arg-type]
    return found


@dataclass
class Counts:
    """What came of the runs."""

    runs: int = 0
    went_on: int = 0
    with_failures: int = 0
    """Of those that went on: the tool could not get memory for something, and said so."""
    out_of_memory: int = 0
    records: int = 0
    incomplete: int = 0
    """Records that the log names; they are there all the same, or lost with a line that says so."""
    recovered: int = 0
    """Folders whose files `recover` made."""


def check(folder: Path, task: str, extra: int, expected: Run, needed: int, counts: Counts) -> None:
    """Train with the tool under a limit, and hold that against the training that was alone and had no limit."""
    found = run(folder, task, extra)
    about = f"{task}, {extra >> 20} MiB, {needed >> 20} needed"
    counts.runs += 1
    failed = _files(folder / "dump", found, counts, about)
    if found.ended:
        assert found.values == expected.values, f"{about}: {found.values}, alone {expected.values}"
        counts.went_on += 1
        counts.with_failures += failed
        return
    counts.out_of_memory += 1
    assert found.error.startswith("MemoryError") or any(text in found.error for text in NO_MEMORY), f"{about}: {found}"
    assert extra < needed + SLACK, f"{about}: {found.error}"


def _files(dump: Path, found: Run, counts: Counts, about: str) -> bool:
    """Whether the tool failed somewhere; every record that had ended is in the files or in the log."""
    if list(dump.rglob("dump.journal")):
        for recovered in kills.recover(str(dump)):
            assert recovered.problem is None, f"{about}: {recovered}"
            counts.recovered += 1
    logs = {path: path.read_text() for path in dump.rglob("dump_error_info.log")}
    said = "\n".join(logs.values())
    for step, name in found.records:
        folders = list(dump.glob(f"step{step}/proc*"))
        data = dumped.read_file(folders[0] / "dump.json")["data"] if folders else {}
        counts.records += 1
        counts.incomplete += name in said
        out = (dump.parent / "out.txt").read_text()
        told = name in said or (not data and ("not collected" in out or "start()" in out or "start()" in said))
        assert name in data or told, f"{about}: {name} of step {step} is lost without a word: {out}"
        for entry in dumped.tensors(data):
            if "data_name" in entry:
                torch.load(folders[0] / "dump_tensor_data" / entry["data_name"], weights_only=True, mmap=True)
    return bool(said)


def needed_by(parent: Path, task: str | None, within: float) -> int:
    """The fewest bytes with which a training ends and, with the tool, nothing fails; to within so many MiB."""
    too_few, enough = 0, 128 << 20
    while enough - too_few > within * (1 << 20):
        extra = (too_few + enough) // 2
        folder = parent / f"{task}-{extra}"
        fine = run(folder, task, extra).ended and not list(folder.rglob("dump_error_info.log"))
        fine = fine and "[ERROR]" not in (folder / "out.txt").read_text()
        too_few, enough = (too_few, extra) if fine else (extra, enough)
        shutil.rmtree(folder)
    return enough


def survive(limits: int, seed: int, parent: Path, tasks: int, within: float) -> Counts:
    """Train under `limits` limits with each of so many tasks below `parent`; stops at the first broken promise."""
    draw, counts = random.Random(seed), Counts()
    # What each fork would import anew, half a second each time.
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    loader.load("torch")
    expected, alone = run(parent / "expected", None, 1 << 32), needed_by(parent, None, within)
    assert expected.ended and len(set(expected.values)) == STEPS
    print(f"alone: {alone / 2**20:.1f} MiB", flush=True)
    for task in draw.sample(TASKS, tasks):
        needed = needed_by(parent, task, within)
        print(f"{task}: {needed / 2**20:.1f} MiB", flush=True)
        room = ROOM + (HELD if task == "async" else 0)
        assert needed <= alone + (room << 20) + within * (1 << 20), f"{task} needs more than {room} MiB"
        for number in range(limits):
            extra = draw.randrange(alone - SLACK // 2, max(needed, alone) + 2 * SLACK)
            check(parent / f"{task}-{number}", task, extra, expected, needed, counts)
            shutil.rmtree(parent / f"{task}-{number}")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, default=24, help="for each of the tasks")
    parser.add_argument("--tasks", type=int, default=len(TASKS), help="how many of the four, which are drawn")
    parser.add_argument("--within", type=float, default=0.5, help="MiB to which is found out how much memory is needed")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"{options.limits} limits for each task, seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp())
    counts = survive(options.limits, options.seed, folder, options.tasks, options.within)
    shutil.rmtree(folder)
    print(
        f"{counts.runs} trainings under a limit: {counts.went_on} ended as they do alone, {counts.with_failures} of "
        f"them while the tool got no memory for something; {counts.out_of_memory} got PyTorch's own error.\n"
        f"{counts.records} records had ended: {counts.incomplete} are named in a log, 0 are lost without a word; "
        f"{counts.recovered} folders were recovered."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
