"""A checkpointed layer behind a frozen embedding, which is not trained.

Reported as https://github.com/mlfoundations/open_clip/issues/573: with `use_reentrant=True`, a layer whose inputs need
no gradient gets none itself.

python checkpointing.py True | False
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    """A frozen embedding, a checkpointed layer, and a head."""

    def __init__(self, is_reentrant: bool) -> None:
        super().__init__()
        self.embed, self.up, self.head = nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.embed.requires_grad_(False)
        self.is_reentrant = is_reentrant

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.up, self.embed(ids), use_reentrant=self.is_reentrant)
        return self.head(torch.tanh(hidden))


torch.manual_seed(0)
model = Model(sys.argv[1] == "True")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    ids, labels = torch.randint(16, (6,)), torch.randint(4, (6,))
    loss = F.cross_entropy(model(ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss:.4f}")
