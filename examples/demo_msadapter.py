"""The model of demo.py, trained with mindtorch in the place of torch, and what was collected."""

from __future__ import annotations

import demo_summary
import mindspore as ms
import numpy as np
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

initialize_torch_proxy()  # from here on "import torch" means mindtorch
setup_metadata_patch()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from demo import LENGTH, ByteModel  # noqa: E402

from msprobe.mindspore import PrecisionDebugger, seed_all  # noqa: E402


def train() -> None:
    seed_all(1234)
    debugger = PrecisionDebugger(dump_path=demo_summary.OUTPUT, level="mix")
    text = np.array(demo_summary.text())
    model = ByteModel()
    parameters = list(model.parameters())

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    differentiated = ms.value_and_grad(loss, None, parameters)
    for step in range(2):
        starts = np.random.randint(0, len(text) - LENGTH - 1, 8)
        batch = torch.tensor(np.stack([text[start : start + LENGTH + 1] for start in starts]))
        debugger.start(model)
        value, gradients = differentiated(batch)
        debugger.stop()
        debugger.step()
        for parameter, gradient in zip(parameters, gradients):
            # No optimizer of mindtorch runs on the CPU.
            ms.ops.assign_sub(parameter, ms.ops.mul(gradient, 0.1))
        print(f"step {step}: loss {value.asnumpy():.4f}")


if __name__ == "__main__":
    demo_summary.show(train)
