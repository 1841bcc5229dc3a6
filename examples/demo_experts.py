"""A mixture of experts in two precisions, and a training in which one gradient points elsewhere for a step.

``msprobe compare`` counts the tokens that take other experts, and says if rounding explains them. ``msprobe monitor
report`` names the step and the parameter whose gradient turns away, though its norm is as before.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import demo_summary
import torch
from torch import nn

from msprobe.pytorch import PrecisionDebugger, TrainerMon, seed_all

WIDTH, EXPERTS, TURN = 32, 8, 12


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = torch.topk(self.gate(x).float().softmax(-1), k=2)
        return weights.to(x.dtype), experts


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, experts = self.router(x)
        every = torch.stack([expert(x) for expert in self.experts], dim=1)
        taken = every.gather(1, experts[..., None].expand(-1, -1, WIDTH))
        return x + (taken * weights[..., None]).sum(1)


def model_of(name: str) -> nn.Module:
    seed_all(1234)
    model = nn.Sequential(*[Mixture() for _ in range(4)])
    return model.bfloat16() if name == "bfloat16" else model


def dump(name: str) -> None:
    """One step in a precision, collected into the folder `name`."""
    model = model_of(name)
    debugger = PrecisionDebugger(dump_path=os.path.join(demo_summary.OUTPUT, name), level="mix")
    x = torch.randn(128, WIDTH).to(next(model.parameters()).dtype)
    debugger.start(model)
    model(x).square().mean().backward()
    debugger.stop()
    debugger.step()


def train(name: str) -> None:
    """Twenty steps with a monitor, as `usual`, or with the rows of one gradient in another order in one step."""
    os.environ["MONITOR_OUTPUT_DIR"] = os.path.join(demo_summary.OUTPUT, name)
    path = os.path.join(demo_summary.OUTPUT, f"{name}.json")
    with open(path, "w") as stream:
        json.dump({"wg_distribution": True, "grad_direction": True, "step_count_per_record": 100}, stream)
    model = model_of(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = TrainerMon(path, params_have_main_grad=False)
    monitor.set_monitor(model, optimizer)
    for step in range(20):
        x = torch.randn(128, WIDTH)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sin()).backward()
        if name == "turned" and step == TURN:
            gate = model[2].router.gate.weight
            gate.grad = gate.grad.roll(1, dims=0)
        optimizer.step()
    monitor.stop()


RUNS = {"float32": dump, "bfloat16": dump, "usual": train, "turned": train}


def main() -> None:
    shutil.rmtree(demo_summary.OUTPUT, ignore_errors=True)
    os.makedirs(demo_summary.OUTPUT)
    for name in RUNS:
        subprocess.run([sys.executable, __file__, name], check=True)
    folders = {name: os.path.join(demo_summary.OUTPUT, name) for name in RUNS}
    result = os.path.join(demo_summary.OUTPUT, "result")
    for arguments in (
        ["compare", folders["bfloat16"], folders["float32"], "-o", result],
        ["monitor", "report", folders["turned"], folders["usual"]],
    ):
        print("\nmsprobe", *arguments, "\n", flush=True)
        done = subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments])
        if done.returncode > 1:
            sys.exit(done.returncode)


if __name__ == "__main__":
    RUNS[sys.argv[1]](sys.argv[1]) if len(sys.argv) > 1 else main()
