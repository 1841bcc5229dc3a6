"""Runs networks under the debugger, a training step for each variant of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from planted_faults.faults import FAULTS
from planted_faults.networks import build
from planted_faults.rounding import ROUNDINGS

from msprobe.pytorch import PrecisionDebugger


class Variant(NamedTuple):
    """A run of the network `model`, rounding as `rounding` says, with the fault of the kind `fault`, if any."""

    model: str
    name: str
    rounding: str
    fault: str | None

    def folder(self, dumps: Path, level: str, task: str) -> Path:
        """Where its dump lies in `dumps`."""
        return dumps / self.model / self.name / f"{level}-{task}"


def dump_all(dumps: Path, level: str, task: str, variants: Sequence[Variant]) -> None:
    """Dump the first training step of each variant; for a process of its own, which has one debugger."""
    warnings.simplefilter("ignore")
    collected = dumps / f".collecting-{level}-{task}-{os.getpid()}"
    debugger = PrecisionDebugger(task=task, dump_path=str(collected), level=level)
    for step, variant in enumerate(variants):
        network = build(variant.model)
        if variant.fault is not None:
            FAULTS[variant.model][variant.fault].plant(network.model)
        with ROUNDINGS[variant.rounding]():
            debugger.start(model=network.model)
            network.loss().backward()
            debugger.stop()
            debugger.step()
        (written,) = (collected / f"step{step}").iterdir()
        folder = variant.folder(dumps, level, task)
        folder.parent.mkdir(parents=True, exist_ok=True)
        written.rename(folder)
        written.parent.rmdir()
    collected.rmdir()
