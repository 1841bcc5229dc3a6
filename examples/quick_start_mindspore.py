"""The smallest MindSpore script under the tool: run it from this folder, next to config.json."""

import mindspore as ms
import numpy as np
from mindspore import mint, nn

from msprobe.mindspore import PrecisionDebugger, seed_all

seed_all()
debugger = PrecisionDebugger(config_path="./config.json")


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(8, 4)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return mint.nn.functional.relu(self.dense(x)).sum()


if __name__ == "__main__":
    net = Net()
    gradient = ms.value_and_grad(net, None, net.trainable_params())
    inputs = ms.Tensor(np.random.randn(10, 8).astype(np.float32))
    debugger.start(net)  # collect from here
    value, gradients = gradient(inputs)
    debugger.stop()  # to here; another start would add to the same step
    debugger.step()  # what is collected from now on belongs to the next step
