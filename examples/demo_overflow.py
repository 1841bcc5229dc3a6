"""Train two ranks on the CPU, of which one overflows, and let ``msprobe overflow_check`` say where.

Both ranks make products in float16, and add up their gradients. In its second step rank 1 gets a batch of which the
scale was forgotten: its products are beyond float16, and everything on both ranks is NaN afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

import demo_summary
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger, seed_all

RANKS = 2
FOUND = 1
"""The exit status of ``overflow_check`` where something is not finite."""


class Mixing(nn.Module):
    """Each sample mixed with those that are like it; how much they are is computed in float16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.half()
        likeness = torch.matmul(half, half.t())
        return torch.matmul(F.softmax(likeness.float() / x.shape[1] ** 0.5, dim=-1), x)


def run(rank: int, rendezvous: str) -> None:
    """Three training steps of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    seed_all(1234)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), Mixing(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(dump_path=os.path.join(demo_summary.OUTPUT, "overflow"), level="mix")
    torch.manual_seed(rank)
    for step in range(3):
        batch, labels = torch.randn(8, 16), torch.randint(4, (8,))
        if (rank, step) == (1, 1):
            batch *= 255
        debugger.start(model)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), labels)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        debugger.stop()
        debugger.step()
        print(f"step {step}, rank {rank}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    shutil.rmtree(demo_summary.OUTPUT, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        ranks = [subprocess.Popen([sys.executable, __file__, str(rank), rendezvous]) for rank in range(RANKS)]
        statuses = [rank.wait() for rank in ranks]
        if any(statuses):
            sys.exit("The training failed.")
    output = os.path.join(demo_summary.OUTPUT, "result")
    arguments = ["overflow_check", "-i", os.path.join(demo_summary.OUTPUT, "overflow"), "-o", output]
    print("\nmsprobe", *arguments, "\n", flush=True)
    done = subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments])
    if done.returncode != FOUND:
        sys.exit(done.returncode or "Nothing was found.")
    print("\nOpen the HTML file in a browser: it shows the ranks that are named.")


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else main()
