"""Train a step with a wrong kernel, let ``msprobe acc_check`` name it, and write the script that shows it by itself."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys

import demo_summary
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger, seed_all

FOUND = 1
"""The exit status of ``acc_check`` and of ``replay`` where something is wrong."""

exact_silu = F.silu


def fast_silu(x: torch.Tensor) -> torch.Tensor:
    """What a faster kernel might compute: the digits of bfloat16, whatever the dtype."""
    return exact_silu(x.bfloat16()).to(x.dtype)


class Block(nn.Module):
    """A block of a transformer without its attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


def train(folder: str) -> None:
    """One step with the wrong kernel, collected with its tensors."""
    seed_all(1234)
    model = nn.Sequential(Block(32), Block(32), nn.Linear(32, 4))
    debugger = PrecisionDebugger(dump_path=folder, task="tensor", level="L1")
    batch, labels = torch.randn(16, 32), torch.randint(4, (16,))
    F.silu = fast_silu
    debugger.start(model)
    loss = F.cross_entropy(model(batch), labels)
    loss.backward()
    debugger.stop()
    debugger.step()
    F.silu = exact_silu
    print(f"loss {loss.item():.4f}", flush=True)


def msprobe(*arguments: str) -> None:
    print("\nmsprobe", *arguments, "\n", flush=True)
    done = subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments])
    if done.returncode not in (0, FOUND):
        sys.exit(done.returncode)


def main() -> None:
    shutil.rmtree(demo_summary.OUTPUT, ignore_errors=True)
    run, result = (os.path.join(demo_summary.OUTPUT, name) for name in ("run", "result"))
    train(run)
    (dump,) = glob.glob(os.path.join(run, "step0", "*", "dump.json"))
    # The kernels of this machine are right, those of the run were not: what is judged is what was recorded.
    msprobe("acc_check", dump, "-d", "recorded", "-o", result)
    script = os.path.join(result, "silu.py")
    msprobe("replay", dump, "Functional.silu.0", "--emit", script)
    print(f"\n{script}, which needs torch only:\n")
    with open(script, encoding="utf-8") as stream:
        print(stream.read())
    subprocess.run([sys.executable, "-I", script], check=False)


if __name__ == "__main__":
    main()
