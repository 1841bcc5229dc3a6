"""Train the networks in MindSpore and dump each step: ``python train_mindspore.py JOBS.json WEIGHTS``.

WEIGHTS is a folder with an npz file for each network, by the names of torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.experimental import optim
from networks_mindspore import NetWithLoss, renamed
from port_settings import RATES, Job, Port, batches, configuration, jobs_of

from msprobe.mindspore import PrecisionDebugger


def new_debugger(path: str) -> PrecisionDebugger:
    """A debugger with a configuration of its own, of which a process has one otherwise."""
    return type("PrecisionDebugger", (PrecisionDebugger,), {"_instance": None})(path)


def train(job: Job, weights: Path) -> None:
    """Train as a job says."""
    port = Port(job.fault)
    model = NetWithLoss(job.network, port)
    arrays = np.load(weights / f"{job.network}.npz", allow_pickle=False)
    by_name = {renamed(job.network, name): arrays[name] for name in arrays.files}
    for name, parameter in model.parameters_and_names():
        if "moving_" not in name:
            parameter.set_data(Tensor(by_name[name]))
    parameters = model.trainable_params()
    optimizer = (
        nn.SGD(parameters, RATES["sgd"])
        if job.optimizer == "sgd"
        else optim.Adam(parameters, RATES["adam"], eps=port.adam_epsilon)
    )
    model.set_train()
    differentiated = ms.value_and_grad(model, None, parameters)
    debugger = new_debugger(configuration(job))
    for batch in batches(job.network, job.steps):
        tensors = [Tensor(array.astype(np.int32) if array.dtype == np.int64 else array) for array in batch]
        debugger.start(model)
        _, gradients = differentiated(*tensors)
        if job.records_update:
            optimizer(gradients)
        debugger.stop()
        debugger.step()
        if not job.records_update:
            optimizer(gradients)


if __name__ == "__main__":
    for each in jobs_of(sys.argv[1]):
        train(each, Path(sys.argv[2]))
