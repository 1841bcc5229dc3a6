"""Run trainings: ``running.py FOLDER MODE NAME...``; what a training leaves lies in FOLDER/NAME/MODE.

All run if no name is given. What the tool prints stands beside the folder, in MODE.txt.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from msprobe.pytorch import PrecisionDebugger
from overflow_trainings.programs import CLEAN, FAULTS, PLANTED, STEPS, Training, batch, network

MODES: dict[str, dict[str, Any]] = {
    "watched": {"task": "overflow_check"},
    "default": {"task": "statistics"},
    "all": {"task": "statistics", "risk_level": "ALL"},
}


def train(training: Training, debugger: Any) -> bytes:
    """Train; the bytes of the parameters at the end."""
    model = network()
    optimizer = training.optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=training.scale) if training.scale else None
    for step in range(STEPS):
        if debugger is not None:
            debugger.start(model)
        optimizer.zero_grad()
        loss = training.loss(model, batch(step), step >= PLANTED)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


def run(folder: Path, mode: str, name: str) -> None:
    """Train with the tool and without, and write whether the bits are the same."""
    training = {**CLEAN, **FAULTS}[name]
    plain = train(training, None)
    settings = {"level": "mix", "dump_path": str(folder / mode), "step": [], "rank": [], **MODES[mode]}
    configuration = folder / f"{mode}.json"
    configuration.write_text(json.dumps(settings))
    # Each training has a debugger of its own, as a process has.
    debugger = type("Debugger", (PrecisionDebugger,), {"_instance": None})(str(configuration))
    try:
        collected = train(training, debugger)
    finally:
        debugger.reset()
    (folder / f"{mode}.bits").write_text("same" if plain == collected else "different")


def main() -> None:
    root, mode, *names = sys.argv[1:]
    torch.set_num_threads(1)
    for name in names or [*CLEAN, *FAULTS]:
        folder = Path(root, name)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{mode}.txt", "w") as printed, contextlib.redirect_stderr(printed):
            run(folder, mode, name)


if __name__ == "__main__":
    main()
