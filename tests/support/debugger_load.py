"""A debugger under load: many records, a large tensor, a deep model, many steps, and what each takes.

Memory is that of the process, from /proc/self/status; time is CPU time. Needs PyTorch.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from msprobe.pytorch import PrecisionDebugger


def memory(key: str = "VmRSS") -> float:
    """MiB in use now, or with ``VmHWM`` at the most so far."""
    with open("/proc/self/status") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith(key)) / 1024


def forget_the_most() -> None:
    with open("/proc/self/clear_refs", "w") as stream:
        stream.write("5")


@contextlib.contextmanager
def debugger(level: str, task: str = "statistics", **more: Any) -> Iterator[tuple[PrecisionDebugger, Path]]:
    """A debugger that writes to a folder which is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        settings = {"task": task, "level": level, "dump_path": f"{folder}/dump", "step": [], "rank": []}
        config.write_text(json.dumps({**settings, **more}))
        PrecisionDebugger._instance = None
        yield PrecisionDebugger(str(config)), Path(folder) / "dump"


def folder_of(dump: Path, step: int = 0) -> Path:
    (found,) = (dump / f"step{step}").iterdir()
    return found


def records(count: int, parts: int = 10) -> dict[str, Any]:
    """`count` records in one step: how time and memory grow, and what the end takes."""
    x = torch.ones(4)
    with debugger("L1", extra_info=True) as (probe, dump):
        probe.start()
        times, used = [], [memory()]
        for _ in range(parts):
            begin = time.process_time()
            for _ in range(count // parts):
                torch.relu(x)
            times.append((time.process_time() - begin) / (count // parts) * 1e6)
            used.append(memory())
        forget_the_most()
        before, begin = memory(), time.process_time()
        probe.stop()
        probe.step()
        end = time.process_time() - begin
        folder = folder_of(dump)
        sizes = {path.name: path.stat().st_size / 2**20 for path in folder.iterdir() if path.is_file()}
        written = 0
        with open(folder / "dump.json", "rb") as stream:
            written = sum(line.startswith(b'  "Torch.relu.') for line in stream)
        return {
            "records": written,
            "us per record, first tenth": times[0],
            "us per record, last tenth": times[-1],
            "bytes of memory per record while collecting": (used[-1] - used[0]) * 2**20 / count,
            "bytes of memory per record, on top, while the files are made": (memory("VmHWM") - before) * 2**20 / count,
            "us per record to make the files": end / count * 1e6,
            "MiB of files": sizes,
        }


def tensor(mib: int, checksum: bool = False) -> dict[str, Any]:
    """One tensor of `mib` MiB: what describing it takes on top of it."""
    x = torch.ones(mib * 2**18)
    x[-1] = 3
    section = {"statistics": {"summary_mode": "md5"}} if checksum else {}
    with debugger("L1", **section) as (probe, dump):
        probe.start()
        forget_the_most()
        before, begin = memory(), time.process_time()
        torch.sum(x)
        probe.stop()
        taken = time.process_time() - begin
        probe.step()
        with open(folder_of(dump) / "dump.json") as stream:
            entry = json.load(stream)["data"]["Torch.sum.0.forward"]["input_args"][0]
        return {
            "entry": entry,
            "MiB on top of the tensor": memory("VmHWM") - before,
            "CPU seconds": taken,
        }


class Inside(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def nested(modules: int) -> nn.Module:
    """Modules each inside the one before; the innermost is linear."""
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(modules):
        model = Inside(model)
    return model


def deep(modules: int, level: str, task: str = "statistics", limit: int | None = 6000) -> dict[str, Any]:
    """A forward and a backward of a model nested `modules` deep; `limit` is Python's on frames, ``None`` as it is."""
    model, x = nested(modules), torch.ones(1, 2, requires_grad=True)
    before = sys.getrecursionlimit()
    if limit is not None:
        # PyTorch alone needs four frames a module.
        sys.setrecursionlimit(limit)
    try:
        with debugger(level, task) as (probe, dump):
            begin = time.process_time()
            probe.start(model)
            model(x).sum().backward()
            probe.stop()
            probe.step()
            taken = time.process_time() - begin
            folder = folder_of(dump)
            with open(folder / "dump.json") as stream:
                names = list(json.load(stream)["data"])
            with open(folder / "construct.json") as stream:
                tree = json.load(stream)
            depth = 0
            name = next((name for name in names if name.endswith("Linear.forward.0")), None)
            while name is not None:
                depth, name = depth + 1, tree[name]
            return {
                "forward": sum(".forward" in name for name in names),
                "backward": sum(".backward." in name for name in names),
                "depth of the tree": depth,
                "tensor files": len(os.listdir(folder / "dump_tensor_data")) if task == "tensor" else 0,
                "errors": (folder / "dump_error_info.log").exists(),
                "CPU seconds": taken,
            }
    finally:
        sys.setrecursionlimit(before)


def steps(count: int, collected: int = 1) -> dict[str, Any]:
    """`count` steps of which one is collected: what the others cost and whether memory grows."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.ones(4, 8)
    with debugger("mix", step=[collected]) as (probe, dump):
        times, used = [], []
        for _ in range(10):
            begin = time.process_time()
            for _ in range(count // 10):
                probe.start(model)
                model(x).sum().backward()
                model.zero_grad()
                probe.stop()
                probe.step()
            times.append((time.process_time() - begin) / (count // 10) * 1e6)
            used.append(memory())
        return {
            "folders": sorted(path.name for path in dump.iterdir()),
            "us per step, second tenth": times[1],
            "us per step, last tenth": times[-1],
            "MiB more after the last tenth than after the second": used[-1] - used[1],
        }
