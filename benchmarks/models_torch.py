"""The small GPT the benchmarks train, in PyTorch, and one training step of it.

Attention is spelled out (two matrix products, mask, softmax) as research code does it, so that a step holds many calls
of many kinds. The file needs nothing but torch: it also runs in an interpreter that has another tool installed, and the
model with torch's API over MindSpore.
"""

from __future__ import annotations

import math

import torch
from sizes import SIZES, Size, Training
from torch import nn


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.register_buffer("mask", torch.ones(size.length, size.length).tril().bool(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        weights = torch.softmax(scores.masked_fill(~self.mask[:length, :length], float("-inf")), dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.ln_2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.ln_1(x))
        return x + self.down(self.act(self.up(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.ln = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def training(name: str, optimizer: bool = False) -> Training:
    """Build the model of size `name`; a step is forward, cross-entropy, backward and, on request, the optimizer.

    Without the optimizer the gradients are dropped after each step, so that every step does the same.
    """
    torch.manual_seed(0)
    size = SIZES[name]
    model = GPT(size)
    ids = torch.randint(size.vocabulary, (size.batch, size.length + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)
    update = torch.optim.AdamW(model.parameters(), lr=1e-4) if optimizer else None

    def step() -> None:
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.view(-1, size.vocabulary), targets)
        loss.backward()
        if update is not None:
            update.step()
        model.zero_grad(set_to_none=True)

    return Training(model, step, update)
