"""Train the networks of networks_torch.py in mindtorch and dump each step.

python train_msadapter.py JOBS.json WEIGHTS
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch
from port_settings import RATES, Job, Port, batches, configuration, jobs_of

initialize_torch_proxy()  # From here on "import torch" means mindtorch.
setup_metadata_patch()

import torch  # noqa: E402
from mindtorch._apis import cpu  # noqa: E402
from networks_torch import NetWithLoss  # noqa: E402

from msprobe.mindspore import PrecisionDebugger  # noqa: E402

_batch_norm = cpu.batch_norm


def batch_norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    """Put right what mindtorch 0.5.1 does on the CPU: it takes weight and bias for mean and variance."""
    return _batch_norm(x, weight, bias, mean, variance, *settings)


cpu.batch_norm = batch_norm


def new_debugger(path: str) -> PrecisionDebugger:
    """A debugger with a configuration of its own, of which a process has one otherwise."""
    return type("PrecisionDebugger", (PrecisionDebugger,), {"_instance": None})(path)


class Optimizer:
    """SGD and Adam as torch defines them; no optimizer of mindtorch runs on the CPU."""

    def __init__(self, name: str, parameters: list[Any], epsilon: float) -> None:
        self.name, self.parameters, self.epsilon, self.steps = name, parameters, epsilon, 0
        self.moments = [[np.zeros(each.shape, np.float32) for _ in range(2)] for each in parameters]

    def step(self, gradients: Any) -> None:
        """Update every parameter."""
        self.steps += 1
        for parameter, gradient, moments in zip(self.parameters, gradients, self.moments):
            update = gradient.asnumpy() if self.name == "sgd" else self._adam(gradient.asnumpy(), moments)
            changed = parameter.asnumpy() - np.float32(RATES[self.name]) * update
            ms.ops.assign(parameter, ms.Tensor(changed.astype(np.float32)))

    def _adam(self, gradient: Any, moments: list[Any]) -> Any:
        moments[0] = 0.9 * moments[0] + 0.1 * gradient
        moments[1] = 0.999 * moments[1] + 0.001 * gradient * gradient
        first, second = moments[0] / (1 - 0.9**self.steps), moments[1] / (1 - 0.999**self.steps)
        return first / (np.sqrt(second) + self.epsilon)


def train(job: Job, folder: Path) -> None:
    """Train as a job says."""
    port = Port(job.fault)
    model = NetWithLoss(job.network, port)
    arrays = np.load(folder / f"{job.network}.npz", allow_pickle=False)
    for name, parameter in model.named_parameters():
        ms.ops.assign(parameter, ms.Tensor(arrays[name]))
    parameters = list(model.parameters())
    optimizer = Optimizer(job.optimizer, parameters, port.adam_epsilon)
    differentiated = ms.value_and_grad(lambda *batch: model(*batch), None, parameters)
    debugger = new_debugger(configuration(job))
    for batch in batches(job.network, job.steps):
        tensors = [torch.tensor(array) for array in batch]
        debugger.start(model)
        _, gradients = differentiated(*tensors)
        if job.records_update:
            optimizer.step(gradients)
        debugger.stop()
        debugger.step()
        if not job.records_update:
            optimizer.step(gradients)


if __name__ == "__main__":
    for each in jobs_of(sys.argv[1]):
        train(each, Path(sys.argv[2]))
