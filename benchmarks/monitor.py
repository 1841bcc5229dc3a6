"""What a training step costs with the monitor, in CPU time relative to the bare step.

Bare steps and monitored steps are made in turns, in one process: `TrainerMon.stop` puts everything back. The first
steps of each turn are left out. The step ends with AdamW's, which `overhead.py` leaves out.

    python benchmarks/monitor.py --sizes small medium
    python benchmarks/monitor.py --real PYTHON          an interpreter with mindstudio-probe==26.2.0 beside it

The real tool cannot be taken away from a process, so each of its settings has a process of its own, and so has ours
then.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOUR = ["min", "max", "mean", "norm"]
SETTINGS: dict[str, dict[str, Any]] = {
    "idle": {"wg_distribution": True, "xy_distribution": True, "all_xy": True, "start_step": 10**9, "ops": FOUR},
    "gradients": {"wg_distribution": True, "ops": FOUR},
    "activations": {"xy_distribution": True, "all_xy": True, "ops": FOUR},
    "everything": {
        "xy_distribution": True, "all_xy": True, "wg_distribution": True, "mv_distribution": True,
        "param_distribution": True, "mg_direction": True, "ops": [*FOUR, "zeros", "nans"],
        "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}]},
    },
    "everything, each tenth step": {
        "xy_distribution": True, "all_xy": True, "wg_distribution": True, "mv_distribution": True,
        "param_distribution": True, "mg_direction": True, "ops": [*FOUR, "zeros", "nans"], "step_interval": 10,
    },
}  # fmt: skip
STEPS = {"small": 40, "medium": 20, "large": 10}
TURNS = 5
_WARM = 3


def training(size: str) -> tuple[Any, Any, Callable[[], None]]:
    """The model of the benchmarks with AdamW, and one step of it."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    made = importlib.import_module("models_torch").training(size)
    parts = importlib.import_module("sizes").SIZES[size]
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=1e-4)
    ids = torch.randint(parts.vocabulary, (parts.batch, parts.length + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)

    def step() -> None:
        logits = made.model(inputs)
        torch.nn.functional.cross_entropy(logits.view(-1, parts.vocabulary), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return made.model, optimizer, step


def middle(values: Sequence[float]) -> float:
    """The median."""
    return sorted(values)[len(values) // 2]


def mean_of(step: Callable[[], None], count: int) -> float:
    """CPU seconds of a step; the mean of several, since what is collected may not be the same in each."""
    for _ in range(_WARM):
        step()
    begun = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - begun) / count


def measured(size: str, name: str) -> dict[str, float]:
    """The bare and the monitored step of one setting."""
    front = importlib.import_module("msprobe.pytorch")
    model, optimizer, step = training(size)
    Path("config.json").write_text(json.dumps({"targets": {}, **SETTINGS[name]}), encoding="utf-8")
    ratios, bare_steps = [], []
    once = not hasattr(front.TrainerMon, "stop")
    for _ in range(1 if once else TURNS):
        bare = [mean_of(step, STEPS[size]) for _ in range(TURNS if once else 1)]
        monitor = front.TrainerMon("config.json", params_have_main_grad=False)
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
        with_monitor = [mean_of(step, STEPS[size]) for _ in range(TURNS if once else 1)]
        if not once:
            monitor.stop()
        shutil.rmtree("monitor_output", ignore_errors=True)
        ratios.append(middle(with_monitor) / middle(bare))
        bare_steps += bare
    return {"bare_ms": middle(bare_steps) * 1e3, "ratio": middle(ratios), "low": min(ratios), "high": max(ratios)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="CPU time of a monitored step, relative to the bare step.")
    parser.add_argument("--sizes", nargs="+", choices=tuple(STEPS), default=tuple(STEPS))
    parser.add_argument("--settings", nargs="+", choices=tuple(SETTINGS), default=tuple(SETTINGS))
    parser.add_argument("--real", metavar="PYTHON", help="interpreter with another tool of the same import name")
    parser.add_argument("--worker", nargs=2, metavar=("SIZE", "SETTING"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.worker:
        print(json.dumps(measured(*chosen.worker)))
        return 0
    here = Path(__file__).resolve().parent
    tools = [("ours", sys.executable, [str(here.parent), str(here)])]
    tools += [("real", chosen.real, [str(here)])] if chosen.real else []
    print(f"{'size':8}{'setting':30}{'tool':6}{'bare ms':>10}{'ratio':>8}   range")
    for size in chosen.sizes:
        for name in chosen.settings:
            for tool, python, paths in tools:
                line = worker(python, paths, size, name)
                text = f"{line['bare_ms']:10.2f}{line['ratio']:8.2f}   {line['low']:.2f}-{line['high']:.2f}"
                print(f"{size:8}{name:30}{tool:6}{text}", flush=True)
    return 0


def worker(python: str, paths: Sequence[str], size: str, name: str) -> dict[str, float]:
    """Measure in a process of its own, in an empty folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MSPROBE_LOG_LEVEL": "4"}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryDirectory(prefix="monitor_") as folder:
        command = [python, str(Path(__file__).resolve()), "--worker", size, name]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
