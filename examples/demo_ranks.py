"""Train on two ranks with faults in what they share, and let ``msprobe compare --ranks`` say what was not reduced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import demo_summary
import torch
import torch.distributed as dist
import torch.nn.functional as F
from demo import ByteModel
from torch.nn.parallel import DistributedDataParallel

OUTPUT = os.path.join(demo_summary.OUTPUT, "ranks")
FORGOTTEN = "blocks.1.expand.weight"


def train(fault: str) -> None:
    """Two steps on one rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = ByteModel()
    if fault == "forgotten":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, [FORGOTTEN])
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.tensor(demo_summary.text()[:1056]).view(2, 2, 8, 33)
    for step in range(2):
        batch = data[step, dist.get_rank()]
        F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        if fault == "twice":
            for parameter in net.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def main() -> None:
    """Record both trainings, and compare the ranks of each."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    for fault in ("forgotten", "twice"):
        run = os.path.join(OUTPUT, fault)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, fault]
        for arguments in (["run", "-q", "--follow-children", "-o", run, *launcher], ["compare", "--ranks", run]):
            print("\nmsprobe", *arguments, "\n", flush=True)
            subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments], check=True)


if __name__ == "__main__":
    train(sys.argv[1]) if "RANK" in os.environ else main()
