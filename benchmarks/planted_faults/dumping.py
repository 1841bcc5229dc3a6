"""Runs networks under the debugger, a training step for each variant of them."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from planted_faults.faults import FAULTS
from planted_faults.networks import build
from planted_faults.rounding import ROUNDINGS
from planted_faults.settings import Setting, Variant

from msprobe.pytorch import PrecisionDebugger


def dump_all(dumps: Path, setting: Setting, seed: int, variants: Sequence[Variant]) -> None:
    """Dump the first training step of each variant; for a process of its own, which has one debugger."""
    warnings.simplefilter("ignore")
    collected = dumps / f".collecting-{setting.folder}-{os.getpid()}"
    debugger = PrecisionDebugger(task=setting.task, dump_path=str(collected), level=setting.level)
    for step, variant in enumerate(variants):
        network = build(variant.model, seed)
        if variant.fault is not None:
            FAULTS[variant.model][variant.fault].plant(network.model)
        network.to(getattr(torch, setting.dtype))
        with ROUNDINGS[variant.rounding]():
            debugger.start(model=network.model)
            network.loss().backward()
            debugger.stop()
            debugger.step()
        (written,) = (collected / f"step{step}").iterdir()
        folder = variant.path(dumps, setting)
        folder.parent.mkdir(parents=True, exist_ok=True)
        written.rename(folder)
        written.parent.rmdir()
    shutil.rmtree(collected)  # What is left there describes the process, and no step.
