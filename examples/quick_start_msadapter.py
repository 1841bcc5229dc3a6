"""The smallest script with torch's API over MindSpore under the tool: run it from this folder, next to config.json."""

import mindspore as ms
import numpy as np
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

initialize_torch_proxy()  # from here on "import torch" means mindtorch
setup_metadata_patch()

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from msprobe.mindspore import PrecisionDebugger, seed_all  # noqa: E402

seed_all()
debugger = PrecisionDebugger(config_path="./config.json")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features=8, out_features=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.linear(x))


if __name__ == "__main__":
    net = Net()

    def loss(x: torch.Tensor) -> torch.Tensor:  # value_and_grad takes functions, not modules of this shape
        return net(x).sum()

    gradient = ms.value_and_grad(loss, None, list(net.parameters()))
    inputs = torch.tensor(np.random.randn(10, 8).astype(np.float32))
    debugger.start(net)  # collect from here
    value, gradients = gradient(inputs)
    debugger.stop()  # to here; another start would add to the same step
    debugger.step()  # what is collected from now on belongs to the next step
