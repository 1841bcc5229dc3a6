"""False alarms of the monitor's rules over healthy trainings, and planted faults: writes MONITOR_ALERTS.md.

    python benchmarks/monitor_alerts.py [--steps 200] [--only healthy|foreign|faults]

Each training runs under `TrainerMon` with the learned rules, which see all families of rows. The rules were chosen by
the trainings that are listed, and never by those that are held out.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from monitor_trainings import faults, foreign, healthy

from msprobe.pytorch import TrainerMon
from probe.monitor.alerts.families import execution_order
from probe.monitor.alerts.ranks import RankRules
from probe.monitor.alerts.rows import Finding

_TARGET = Path(__file__).with_name("MONITOR_ALERTS.md")
_FAULT_STEPS = 85
_FAULTY = ("mlp_sgd", "cnn_batchnorm", "gpt_adamw", "diffusion_adagrad", "resnet_nesterov")
_CONFIG = {
    "targets": {}, "xy_distribution": True, "wg_distribution": True, "mv_distribution": True,
    "param_distribution": True, "ops": ["norm", "min", "max", "mean", "zeros", "nans"], "step_count_per_record": 1000,
    "alert": {"rules": [], "actions": []},
}  # fmt: skip


def judged(training: Any, steps: int, plant: faults.Plant | None = None) -> tuple[list[Finding], Any, int]:
    """The findings of one training, the fault that was planted, and the number of rows of a step."""
    found: list[Finding] = []
    planted: list[Any] = []
    monitors: list[TrainerMon] = []
    rows: list[int] = []

    def record(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if plant is not None:
            planted.append(plant(model, optimizer))
        monitor = TrainerMon("monitor.json", params_have_main_grad=False)
        monitor.set_monitor(model, optimizer)
        monitor.alerts.callbacks.append(found.extend)
        monitor.add_receiver(lambda step: rows.append(sum(len(table.rows) for table in step.tables)))
        monitors.append(monitor)

    torch.manual_seed(0)
    training(record, steps)
    monitors[0].stop()
    return sorted(found, key=execution_order), planted[0] if planted else None, max(rows)


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
        found += rules.judge(step, {rank: kept[step] for rank, kept in rows_of.items()})
    first = min(found, key=execution_order)
    right = (first.rule, first.name, first.step) == ("rank_divergence", "2.weight", faults.FROM)
    return f"step {first.step}: {first.name} ({first.family}): {first.rule}", right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", choices=["healthy", "foreign", "faults"])
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
            lines += _healthy(args.steps)
        if args.only in (None, "foreign"):
            lines += _foreign(args.steps)
        if args.only in (None, "faults"):
            lines += _faults()
        os.chdir(before)
    if args.only is None:
        _TARGET.write_text("\n".join(lines) + "\n")


def _healthy(steps: int) -> list[str]:
    lines = [
        f"## Healthy trainings of {steps} steps\n",
        "| training | held out | rows of a step | alerts |",
        "|---|---|---|---|",
    ]
    for held_out, trainings in ((False, healthy.LISTED), (True, healthy.HELD_OUT)):
        for name, training in trainings.items():
            found, _, rows = judged(training, steps)
            lines.append(f"| {name} | {'yes' if held_out else 'no'} | {rows} | {_counted(found)} |")
            print(lines[-1], flush=True)
    return [*lines, ""]


def _counted(found: list[Finding]) -> str:
    return f"{len(found)}: {found[0].text()}" if found else "0"


def _foreign(steps: int) -> list[str]:
    lines = [
        f"## Healthy trainings of {steps} steps that others wrote\n",
        "Models, loops, optimizers and schedules of packages; no rule was chosen by them.\n",
        "| training | it has | rows of a step | alerts |",
        "|---|---|---|---|",
    ]
    for name, training in foreign.FOREIGN.items():
        has = (training.__doc__ or "").rstrip(".")
        try:
            found, _, rows = judged(training, steps)
        except ModuleNotFoundError as error:
            lines.append(f"| {name} | {has} | | not run: {error} |")
        else:
            lines.append(f"| {name} | {has} | {rows} | {_counted(found)} |")
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
            found, planted, _ = judged(trainings[name], _FAULT_STEPS, plant)
            first = found[0] if found else None
            right = (
                first is not None and first.rule in planted.rules and first.name.startswith(planted.name)
                and faults.FROM - 1 <= first.step <= faults.FROM + 1
            )  # fmt: skip
            named = "nothing" if first is None else f"step {first.step}: {first.name} ({first.family}): {first.rule}"
            lines.append(f"| {name} | {held_out} | {fault} | {named} | {'yes' if right else 'no'} |")
            print(lines[-1], flush=True)
    found, _, _ = judged(faults.exploding_depth, 20)
    named = f"step {found[0].step}: {found[0].name} ({found[0].family}): {found[0].rule}" if found else "nothing"
    lines.append(
        f"| deep net | no | exploding_depth | {named} | {'yes' if found and found[0].rule == 'exploding' else 'no'} |"
    )
    print(lines[-1], flush=True)
    named, right = wrong_rank()
    lines.append(f"| mlp_sgd, 2 ranks | no | wrong_rank | {named} | {'yes' if right else 'no'} |")
    print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    main()
