"""Run trainings: ``running.py FOLDER MODE NAME...``; what a training leaves lies in FOLDER/NAME/MODE.

Each runs in a process of its own, forked from this one. What is printed stands beside its folder, in MODE.txt.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from trainings.programs import CLEAN, FAULTS, PLANTED, STEPS, Training, batch, network  # noqa: E402

from msprobe.pytorch import PrecisionDebugger  # noqa: E402
from probe.backends.torch.hooks.api_list import watched  # noqa: E402

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
    """Train with the tool and without; the bits are the same."""
    training = {**CLEAN, **FAULTS}[name]
    plain = train(training, None)
    task = MODES[mode]["task"]
    settings = {"level": "mix", "dump_path": str(folder / mode), "step": [], "rank": [], "task": task}
    configuration = folder / f"{mode}.json"
    configuration.write_text(json.dumps({**settings, task: MODES[mode]}))
    collected = train(training, PrecisionDebugger(str(configuration)))
    (folder / f"{mode}.bits").write_text("same" if plain == collected else "different")


def main() -> None:
    root, mode, *names = sys.argv[1:]
    watched()
    failed = []
    for name in names:
        folder = Path(root, name)
        folder.mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if not child:
            status = 1
            try:
                printed = os.open(folder / f"{mode}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                os.dup2(printed, 1)
                os.dup2(printed, 2)
                run(folder, mode, name)
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                import atexit

                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            failed.append(name)
    if failed:
        print(f"failed: {failed}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
