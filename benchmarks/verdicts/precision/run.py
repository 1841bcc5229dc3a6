"""Networks with many layers of one kind, in two precisions: right, and with one fault.

run.py OUT LEVEL    dumps all runs at one level; a process has one debugger
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import torch

from msprobe.pytorch import PrecisionDebugger
from verdicts.precision.networks import NETWORKS, build, loss

GOLDEN, RIGHT = "golden", "right"


def dump(folder: Path, level: str) -> None:
    """Dump all runs at one level."""
    collected = folder / f".collecting-{level}-{os.getpid()}"
    debugger = PrecisionDebugger(task="statistics", dump_path=str(collected), level=level)
    step = 0
    for name, network in NETWORKS.items():
        for run in (GOLDEN, RIGHT, *network.faults):
            model = build(name)
            if run in network.faults:
                network.faults[run][1](model)
            model.to(getattr(torch, network.golden_dtype if run == GOLDEN else network.dtype))
            threads = 2 if run == GOLDEN else 1
            torch.set_num_threads(threads)
            debugger.start(model=model)
            loss(name, model).backward()
            debugger.stop()
            debugger.step()
            place = folder / name / run / level
            place.mkdir(parents=True, exist_ok=True)
            (collected / f"step{step}").rename(place / "step0")
            # The settings of all models so far.
            for environment in collected.glob("environment_*.json"):
                shutil.copy(environment, place)
            step += 1


if __name__ == "__main__":
    dump(Path(sys.argv[1]), sys.argv[2])
