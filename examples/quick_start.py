"""The smallest script under the tool: run it from this folder, next to config.json."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from msprobe.pytorch import PrecisionDebugger, seed_all

seed_all()
debugger = PrecisionDebugger(config_path="./config.json")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features=8, out_features=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.linear(x))


if __name__ == "__main__":
    model = Net()
    debugger.start(model=model)  # collect from here
    loss = model(torch.randn(10, 8)).sum()
    loss.backward()
    debugger.stop()  # to here; another start would add to the same step
    debugger.step()  # what is collected from now on belongs to the next step
