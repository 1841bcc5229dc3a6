"""A rotary embedding whose frequencies a cast of the whole model rounds to bfloat16.

Reported as https://github.com/EleutherAI/gpt-neox/issues/1003 and
https://github.com/huggingface/transformers/issues/25681. `keep` computes the frequencies again after the cast.

python rotary.py cast | keep
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Rotary(nn.Module):
    """Sines and cosines of positions times frequencies."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("inv_freq", self.frequencies(), persistent=False)

    def frequencies(self) -> torch.Tensor:
        return 1 / 10000 ** (torch.arange(0, self.size, 2).float() / self.size)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(x.shape[-2]).type_as(self.inv_freq)
        angles = torch.einsum("i,j->ij", positions, self.inv_freq).repeat(1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with four heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out, self.rotary = nn.Linear(width, 3 * width), nn.Linear(width, width), Rotary(width // 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        cos, sin = self.rotary(query)
        query, key = (each * cos + turned(each) * sin for each in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def turned(x: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, -1)
    return torch.cat((-other, one), -1)


class Model(nn.Module):
    """Two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(128, 64), nn.Linear(64, 128)
        self.layers = nn.ModuleList(Attention(64) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


torch.manual_seed(0)
model = Model().to(torch.bfloat16)
if sys.argv[1] == "keep":
    for layer in model.layers:
        layer.rotary.inv_freq = layer.rotary.frequencies()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ids = torch.randint(128, (1, 513))
loss = F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[0, 1:])
loss.backward()
optimizer.step()
print(f"loss {loss:.4f}")
