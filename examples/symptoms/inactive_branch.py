"""A NaN of a branch that `torch.where` does not take, which comes back in the backward pass.

Reported as https://github.com/pytorch/pytorch/issues/187297.

python inactive_branch.py
"""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    x = model(torch.randn(4, 8))
    loss = torch.where(x > 0, torch.sqrt(x), x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss:.4f}")
