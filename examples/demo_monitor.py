"""Train with a monitor; at step 60 the labels of a batch are scaled wrongly, and the loss spikes.

The monitor names the row that began and dumps the step after it. ``msprobe monitor report`` reads its files, and
``msprobe trend`` makes a page of them.
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

from msprobe.pytorch import TrainerMon

FOLDER = os.path.join(demo_summary.OUTPUT, "monitor")
FOUND = 1
"""The exit status of ``monitor report`` where something is abnormal."""
STEPS, SPIKE = 100, 60


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def train() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), Block(32), Block(32), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    config = {
        "targets": {}, "xy_distribution": True, "wg_distribution": True, "param_distribution": True,
        "ops": ["norm", "min", "max", "mean"], "step_count_per_record": STEPS,
        "alert": {"rules": [], "actions": ["log", "file", "dump"]},
    }  # fmt: skip
    path = os.path.join(demo_summary.OUTPUT, "monitor.json")
    with open(path, "w") as stream:
        json.dump(config, stream)
    monitor = TrainerMon(path, params_have_main_grad=False)
    monitor.set_monitor(model, optimizer)
    for step in range(STEPS):
        x = torch.randn(32, 8)
        y = torch.sin(x).sum(1, keepdim=True)
        if step == SPIKE:
            y = y * 1000
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step in (SPIKE - 1, SPIKE + 1):
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    monitor.stop()


def main() -> None:
    shutil.rmtree(demo_summary.OUTPUT, ignore_errors=True)
    os.makedirs(demo_summary.OUTPUT)
    os.environ["MONITOR_OUTPUT_DIR"] = FOLDER
    train()
    report, page = ["monitor", "report", FOLDER], ["trend", FOLDER, "-o", demo_summary.OUTPUT]
    for arguments, status in ((report, FOUND), (page, 0)):
        print("\nmsprobe", *arguments, "\n", flush=True)
        done = subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments])
        if done.returncode != status:
            sys.exit(done.returncode or "Nothing was found.")
    dumps = [folder for folder, _, files in os.walk(FOLDER) if "dump.json" in files]
    if not dumps:
        sys.exit("The step after the spike was not dumped.")
    print(f"\nThe dump of step {SPIKE + 1} is in {dumps[0]}.")
    print("Open the HTML file in a browser: it stands at the row that began.")


if __name__ == "__main__":
    main()
