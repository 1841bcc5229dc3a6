"""Train a small language model for two steps under the tool and read what was collected."""

from __future__ import annotations

import demo_summary
import torch
import torch.nn as nn
import torch.nn.functional as F

from msprobe.pytorch import PrecisionDebugger, seed_all

WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 32


class Block(nn.Module):
    """One transformer layer: attention and a feed-forward part, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed_forward(self.norm2(x))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.contract(F.gelu(self.expand(x)))


class ByteModel(nn.Module):
    """Predicts the next byte of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train() -> None:
    seed_all(1234)
    debugger = PrecisionDebugger(dump_path=demo_summary.OUTPUT, level="mix")
    text = torch.tensor(demo_summary.text())
    model = ByteModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        starts = torch.randint(0, len(text) - LENGTH - 1, (8,))
        batch = torch.stack([text[start : start + LENGTH + 1] for start in starts])
        debugger.start(model)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    demo_summary.show(train)
