"""Trainings killed at random moments: ``python tests/reliability/kills.py --kills 200 --seed 1``.

Each run is a fork of a process that has imported torch and done nothing with it. It writes a line to a pipe whenever
a record has ended; this process kills it (SIGKILL) at a moment drawn from the seed, recovers what it left and holds
that against the lines: every record that had ended is there, the files are valid, the tensor files named in them
exist and load, and a second recover changes not one byte.

Two of five kills are aimed at the end of a step, when ``stop()`` and ``step()`` make the files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "backends" / "support")]

import dumped
import torch
import torch.distributed as dist
from torch import nn

from msprobe.pytorch import PrecisionDebugger
from probe.common.dump.recovery import recover

KINDS = [
    (level, task, processes)
    for processes in (1, 2)
    for task in ("statistics", "tensor", "async")
    for level in ("L0", "L1", "mix")
]
AT_THE_END = 0.4
"""Of the kills: aimed at the moments in which a step ends."""
PASSES = 10
"""Forward and backward passes in each step."""


@dataclass(frozen=True)
class Kill:
    """One run and its end."""

    level: str
    task: str
    """``async`` is the tensor task with ``async_dump``."""
    processes: int
    seconds: float
    """After the moment below."""
    ending: int | None
    """Kill while this step ends; ``None``: `seconds` after the first step began."""
    both: bool
    """With two processes, whether both are killed or one."""


def kills(number: int, seed: int) -> Iterator[Kill]:
    """`number` kills drawn from `seed`, over all kinds in turn."""
    draw = random.Random(seed)
    for n in range(number):
        level, task, processes = KINDS[n % len(KINDS)] if number >= len(KINDS) else draw.choice(KINDS)
        at_end = draw.random() < AT_THE_END
        seconds = draw.uniform(0, 0.006 if at_end else draw.choice((0.03, 0.2)))
        yield Kill(level, task, processes, seconds, draw.randrange(3) if at_end else None, draw.random() < 0.5)


@dataclass
class Counts:
    """What came of the kills."""

    kills: int = 0
    while_ending: int = 0
    in_a_record: int = 0
    records: int = 0
    tensors: int = 0
    unwritten: int = 0
    lost: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


# --- the run that is killed


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.act = nn.Tanh()

    def forward(self, x: Any) -> Any:
        return torch.sin(self.act(self.fc(x)))


def _train(kill: Kill, folder: Path, rank: int, pipe: int) -> None:
    def say(*words: object) -> None:
        os.write(pipe, (" ".join(map(str, words)) + "\n").encode())

    if kill.processes > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=kill.processes)
    modules, apis = kill.level != "L1", kill.level != "L0"
    debugger = PrecisionDebugger(str(folder / "config.json"))
    net, x = _Net(), torch.ones(4, 8, requires_grad=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    say("begin")
    for step in range(10_000):
        debugger.start(net)
        for n in range(PASSES):
            loss = net(x).sum()
            if modules:
                say(step, f"Module.fc.Linear.forward.{n}")
                say(step, f"Module.act.Tanh.forward.{n}")
            if apis:
                say(step, f"Torch.sin.{n}.forward")
                say(step, f"Tensor.sum.{n}.forward")
            loss.backward()
            if modules:
                say(step, f"Module.act.Tanh.backward.{n}")
                say(step, f"Module.fc.Linear.backward.{n}")
                say(step, f"Module.fc.Linear.parameters_grad.{n}")
            if apis:
                say(step, f"Torch.sin.{n}.backward")
                say(step, f"Tensor.sum.{n}.backward")
            if kill.processes > 1 and n == 0:
                dist.all_reduce(net.fc.weight.grad)
                if apis:
                    say(step, "Distributed.all_reduce.0.forward")
            optimizer.step()
        say("ending", step)
        debugger.stop()
        debugger.step()
        say("ended", step)


def _fork(folder: Path, work: Callable[[int], None]) -> tuple[int, int]:
    """Run `work` with the writing end of a pipe in a new process; its id and the reading end."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(read)
            for stream in (1, 2):
                os.dup2(os.open(folder / "out.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
            torch.set_num_threads(1)
            work(write)
            status = 0
        except Exception as error:  # the rank that was not killed loses its partner
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            # Not os._exit alone: files are to be made as at the end of any process.
            with contextlib.suppress(BaseException):
                import atexit

                atexit._run_exitfuncs()
            os._exit(status)
    os.close(write)
    os.set_blocking(read, False)
    return process, read


class _Ear:
    """The lines of one process."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._text = b""

    def lines(self) -> list[list[str]]:
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._pipe, 1 << 16):
                self._text += part
        # A line is written at once, so only whole ones are there.
        return [line.split(" ") for line in self._text.decode().splitlines()]

    def close(self) -> None:
        os.close(self._pipe)


def run(kill: Kill, folder: Path) -> tuple[list[list[list[str]]], list[int]]:
    """Train in `folder` and kill: the lines of each process, and how each of them ended."""
    task = "statistics" if kill.task == "statistics" else "tensor"
    config: dict[str, Any] = {"task": task, "level": kill.level, "risk_level": "ALL", "dump_path": str(folder / "dump")}
    config[task] = {"list": ["."]} if kill.task == "async" else {}
    config["async_dump"] = kill.task == "async"
    (folder / "config.json").write_text(json.dumps(config))
    started = [
        _fork(folder, lambda pipe, rank=rank: _train(kill, folder, rank, pipe))  # type: ignore[misc]
        for rank in range(kill.processes)
    ]
    ears = [_Ear(pipe) for _, pipe in started]
    awaited = ["begin"] if kill.ending is None else ["ending", str(kill.ending)]
    until = time.monotonic() + 60
    while not all(awaited in ear.lines() for ear in ears):
        assert time.monotonic() < until, f"{kill} did not come to {awaited}: {(folder / 'out.txt').read_text()}"
        time.sleep(0.0005)
    time.sleep(kill.seconds)
    for process, _ in started if kill.both else started[:1]:
        os.kill(process, signal.SIGKILL)
    statuses = [_ended(process, until) for process, _ in started]
    lines = [ear.lines() for ear in ears]
    for ear in ears:
        ear.close()
    return lines, statuses


def _ended(process: int, until: float) -> int:
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise AssertionError(f"process {process} neither died nor ended")


# --- what it left


def check(kill: Kill, folder: Path, counts: Counts) -> None:
    """Kill one run, recover, and hold what there is against what the run said."""
    lines, statuses = run(kill, folder)
    expected = [-signal.SIGKILL if kill.both or rank == 0 else 1 for rank in range(kill.processes)]
    assert statuses == expected, f"{statuses}: {(folder / 'out.txt').read_text()}"
    counts.kills += 1
    counts.kinds[f"{kill.level} {kill.task} {kill.processes}"] += 1
    last = lines[0][-1][0]
    counts.while_ending += last == "ending"
    dump = folder / "dump"
    for found in _recover(dump):
        assert found.problem is None, found
        counts.in_a_record += found.torn_at is not None
    for rank, said in enumerate(lines):
        known: dict[str, list[str]] = {}
        for step, name in (line for line in said if line[0].isdigit()):
            known.setdefault(step, []).append(name)
        for step, names in known.items():
            _check_step(kill, dump / f"step{step}", rank, names, counts, int(step) > len(known) - 3)
    before = _contents(dump)
    list(_recover(dump))
    after = _contents(dump)
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    assert not changed, f"a second recover changes {changed}"
    for file in dump.rglob("*.json"):
        json.loads(file.read_bytes())


def _contents(dump: Path) -> dict[str, bytes]:
    return {str(path.relative_to(dump)): path.read_bytes() for path in dump.rglob("*") if path.is_file()}


def _recover(dump: Path) -> list[Any]:
    journals = list(dump.rglob("dump.journal"))
    # One that has not even its header is of a step that had not begun.
    begun = [journal for journal in journals if journal.stat().st_size > 100]
    if not begun:
        return []
    return [found for found in recover(str(dump)) if Path(found.folder, "dump.journal") in begun]


def _check_step(kill: Kill, step: Path, rank: int, names: list[str], counts: Counts, wholly: bool) -> None:
    # Earlier steps ended in order, and holding all of them against the schema would take most of the time.
    (folder,) = step.glob(f"rank{rank}" if kill.processes > 1 else "proc*")
    data = json.loads((folder / "dump.json").read_bytes())["data"]
    counts.records += len(names)
    counts.lost += [f"{folder}: {name}" for name in names if name not in data]
    if not wholly:
        return
    found = dumped.Dump(folder)
    calls = [name for name in names if "parameters_grad" not in name]
    if kill.level != "L1":
        assert set(calls) <= set(found.tree)
    in_stacks = {name for listed, _ in found.stacks.values() for name in listed}
    assert {name for name in calls if ".forward" in name} <= in_stacks
    entries = dumped.tensors({name: found.data[name] for name in names if name in found.data})
    files = [entry["data_name"] for entry in entries if "data_name" in entry]
    assert kill.task != "tensor" or len(files) == len(entries) > 0
    counts.unwritten += len(entries) - len(files) if kill.task == "async" else 0
    for name in files:
        tensor = torch.load(folder / "dump_tensor_data" / name, weights_only=True)
        assert isinstance(tensor, torch.Tensor)
        counts.tensors += 1


def survive(number: int, seed: int, parent: Path) -> Counts:
    """Kill `number` runs below `parent`; stops at the first that left something it should not."""
    counts = Counts()
    for n, kill in enumerate(kills(number, seed)):
        folder = parent / str(n)
        folder.mkdir()
        try:
            check(kill, folder, counts)
        except BaseException:
            print(f"seed {seed}, kill {n}: {kill}, see {folder}", flush=True)
            raise
        shutil.rmtree(folder)
        if n % 20 == 19:
            print(f"{n + 1} of {number} kills survived", flush=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"{options.kills} kills, seed {options.seed}", flush=True)
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp())
    counts = survive(options.kills, options.seed, folder)
    shutil.rmtree(folder)
    for kind, number in sorted(counts.kinds.items()):
        print(f"  {kind}: {number}")
    print(
        f"{counts.kills} kills survived in {time.monotonic() - begun:.0f} s: {counts.while_ending} while a step ended, "
        f"{counts.in_a_record} in the middle of a record.\n{counts.records} records had ended, {len(counts.lost)} of "
        f"them are lost; {counts.tensors} tensor files load, {counts.unwritten} of async_dump were not written yet."
    )
    for line in counts.lost:
        print(f"lost: {line}")
    return 1 if counts.lost else 0


if __name__ == "__main__":
    sys.exit(main())
