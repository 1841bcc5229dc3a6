"""Train the networks in PyTorch and dump each step: ``python train_torch.py JOBS.json WEIGHTS``.

The weights of each network are left in the folder WEIGHTS, for the other frameworks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from networks_torch import NetWithLoss
from port_settings import RATES, Job, Port, batches, configuration, jobs_of, weights

from msprobe.pytorch import PrecisionDebugger


def new_debugger(path: str) -> PrecisionDebugger:
    """A debugger with a configuration of its own, of which a process has one otherwise."""
    return type("PrecisionDebugger", (PrecisionDebugger,), {"_instance": None})(path)


def train(job: Job, folder: Path) -> None:
    """Train as a job says."""
    port = Port(job.fault)
    model = NetWithLoss(job.network, port)
    state = model.state_dict()
    learned = {name: tuple(value.shape) for name, value in model.named_parameters()}
    arrays = weights(learned)
    np.savez(folder / f"{job.network}.npz", **arrays)
    for name, array in arrays.items():
        state[name].copy_(torch.tensor(array))
    optimizer = (
        torch.optim.SGD(model.parameters(), RATES["sgd"])
        if job.optimizer == "sgd"
        else torch.optim.Adam(model.parameters(), RATES["adam"], eps=port.adam_epsilon)
    )
    debugger = new_debugger(configuration(job))
    for batch in batches(job.network, job.steps):
        tensors = [torch.tensor(array) for array in batch]
        debugger.start(model)
        loss = model(*tensors)
        loss.backward()
        if job.records_update:
            optimizer.step()
        debugger.stop()
        debugger.step()
        if not job.records_update:
            optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in jobs_of(sys.argv[1]):
        train(each, Path(sys.argv[2]))
