"""A small training for ``msprobe run``: its argument is the epsilon of a layer."""

import sys

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.expand = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32, eps=epsilon)
        self.contract = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.expand(x))
        return self.contract(nn.functional.gelu(hidden))


torch.manual_seed(0)
model = Model(epsilon=float(sys.argv[1]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    inputs, labels = torch.randn(8, 16), torch.randint(4, (8,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")
