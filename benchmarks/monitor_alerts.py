"""False alarms of the monitor's rules over healthy trainings, and planted faults: writes MONITOR_ALERTS.md.

    python benchmarks/monitor_alerts.py [--steps 200] [--seeds 1] [--only healthy|foreign|faults|named]

Each training runs under `TrainerMon` with all families of rows; its files are judged as `monitor report` does. The
rules were chosen by the trainings that are listed, and never by those that are held out.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from monitor_trainings import faults, foreign, further, further_faults, healthy

from msprobe.pytorch import TrainerMon
from probe.monitor.alerts.ranks import RankRules
from probe.monitor.alerts.rows import execution_order
from probe.monitor.judging import JudgedRun, judge_run
from probe.monitor.monitor_run import read_monitor

_TARGET = Path(__file__).with_name("MONITOR_ALERTS.md")
_FAULT_STEPS = 85
_FAULTY = ("mlp_sgd", "cnn_batchnorm", "gpt_adamw", "diffusion_adagrad", "resnet_nesterov")
_CONFIG = {
    "targets": {}, "xy_distribution": True, "wg_distribution": True, "mv_distribution": True,
    "param_distribution": True, "ops": ["norm", "min", "max", "mean", "zeros", "nans"], "step_count_per_record": 1000,
    "alert": {"rules": [], "actions": []},
}  # fmt: skip


def judged(training: Any, steps: int, plant: faults.Plant | Any = None, seed: int = 0) -> tuple[JudgedRun, Any]:
    """The report on one training, and the fault that was planted."""
    planted: list[Any] = []
    monitors: list[TrainerMon] = []

    def record(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if plant is not None:
            planted.append(plant(model, optimizer))
        monitor = TrainerMon("monitor.json", params_have_main_grad=False)
        monitor.set_monitor(model, optimizer)
        monitors.append(monitor)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MONITOR_OUTPUT_DIR"] = folder
        torch.manual_seed(seed)
        training(record, steps)
        monitors[0].stop()
        found = judge_run(read_monitor(folder))
    return found, planted[0] if planted else None


def wrong_rank() -> tuple[str, bool]:
    """Two replicas of one training, of which one changes a gradient by a percent from a step on."""
    rows_of: dict[int, list[Any]] = {}
    for rank in range(2):
        kept: list[Any] = []

        def record(
            model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int = rank, kept: list[Any] = kept
        ) -> None:
            steps = faults._Steps(optimizer)
            weight = model[2].weight
            if rank:
                weight.register_hook(lambda gradient: gradient * 1.01 if steps.now >= faults.FROM else gradient)
            monitor = TrainerMon("monitor.json", params_have_main_grad=False)
            monitor.set_monitor(model, optimizer)
            judge = monitor.alerts
            monitor.add_receiver(lambda step: kept.append(judge.rows_of(step)))

        torch.manual_seed(0)
        healthy.mlp_sgd(record, _FAULT_STEPS)
        rows_of[rank] = kept
    rules, found = RankRules(), []
    for step in range(_FAULT_STEPS):
        found += rules.judge([replace(each, rank=rank) for rank, kept in rows_of.items() for each in kept[step]])
    first = min(found, key=execution_order)
    right = (first.rule, first.name, first.step) == ("rank_divergence", "2.weight", faults.FROM)
    return f"step {first.step}: {first.name} ({first.family}): {first.rule}", right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", choices=["healthy", "foreign", "faults", "named"])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["MSPROBE_LOG_LEVEL"] = "error"
    lines = [
        "# Alerts of the monitor\n",
        "Written by `python benchmarks/monitor_alerts.py`. The rules were chosen by the trainings that are listed.\n",
    ]
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("monitor.json").write_text(json.dumps(_CONFIG))
        if args.only in (None, "healthy"):
            lines += _healthy(args.steps, args.seeds)
        if args.only in (None, "foreign"):
            lines += _foreign(args.steps)
        if args.only in (None, "faults"):
            lines += _faults()
        if args.only in (None, "named"):
            lines += _named()
        os.chdir(before)
    if args.only is None:
        _TARGET.write_text("\n".join(lines) + "\n")


def _healthy(steps: int, seeds: int) -> list[str]:
    lines = [
        f"## Healthy trainings of {steps} steps\n",
        "| training | held out | seed | alerts |",
        "|---|---|---|---|",
    ]
    listed, held_out = {**healthy.LISTED, **further.LISTED}, {**healthy.HELD_OUT, **further.HELD_OUT}
    for is_held_out, trainings in (("no", listed), ("yes", held_out)):
        for name, training in trainings.items():
            for seed in range(seeds):
                found, _ = judged(training, steps, seed=seed)
                lines.append(f"| {name} | {is_held_out} | {seed} | {_counted(found)} |")
                print(lines[-1], flush=True)
    return [*lines, ""]


def _counted(found: JudgedRun) -> str:
    return f"{len(found.findings)}: {found.headline}" if found.findings else "0"


def _named() -> list[str]:
    lines = [
        f"## Faults that the headline has to name, from step {faults.FROM} on\n",
        "| fault | held out | headline | right |",
        "|---|---|---|---|",
    ]
    for is_held_out, planted in (("no", further_faults.LISTED), ("yes", further_faults.HELD_OUT)):
        for name, fault in planted.items():
            found, _ = judged(fault.training, _FAULT_STEPS, fault.plant, seed=1)
            first = found.first
            is_timely = first is not None and fault.steps[0] <= first.step <= fault.steps[1]
            right = is_timely and all(word in found.headline for word in fault.words)
            lines.append(f"| {name} | {is_held_out} | {found.headline} | {'yes' if right else 'no'} |")
            print(lines[-1], flush=True)
    return [*lines, ""]


def _foreign(steps: int) -> list[str]:
    lines = [
        f"## Healthy trainings of {steps} steps that others wrote\n",
        "Models, loops, optimizers and schedules of packages; no rule was chosen by them.\n",
        "| training | it has | alerts |",
        "|---|---|---|",
    ]
    for name, training in foreign.FOREIGN.items():
        has = (training.__doc__ or "").rstrip(".")
        try:
            found, _ = judged(training, steps)
        except ModuleNotFoundError as error:
            lines.append(f"| {name} | {has} | not run: {error} |")
        else:
            lines.append(f"| {name} | {has} | {_counted(found)} |")
        print(lines[-1], flush=True)
    return [*lines, ""]


def _faults() -> list[str]:
    lines = [
        f"## Planted faults, from step {faults.FROM} on\n",
        "| training | held out | fault | named first | right |", "|---|---|---|---|---|",
    ]  # fmt: skip
    trainings = {**healthy.LISTED, **healthy.HELD_OUT}
    for name in _FAULTY:
        held_out = "yes" if name in healthy.HELD_OUT else "no"
        for fault, plant in faults.FAULTS.items():
            found, planted = judged(trainings[name], _FAULT_STEPS, plant)
            first = found.first
            right = (
                first is not None and first.rule in planted.rules and first.name.startswith(planted.name)
                and faults.FROM - 1 <= first.step <= faults.FROM + 1
            )  # fmt: skip
            named = "nothing" if first is None else f"step {first.step}: {first.name} ({first.family}): {first.rule}"
            lines.append(f"| {name} | {held_out} | {fault} | {named} | {'yes' if right else 'no'} |")
            print(lines[-1], flush=True)
    first = judged(faults.exploding_depth, 20)[0].first
    named = f"step {first.step}: {first.name} ({first.family}): {first.rule}" if first else "nothing"
    right = first is not None and first.rule == "exploding"
    lines.append(f"| deep net | no | exploding_depth | {named} | {'yes' if right else 'no'} |")
    print(lines[-1], flush=True)
    named, right = wrong_rank()
    lines.append(f"| mlp_sgd, 2 ranks | no | wrong_rank | {named} | {'yes' if right else 'no'} |")
    print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    main()
