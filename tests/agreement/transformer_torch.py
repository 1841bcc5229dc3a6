"""A small transformer as one writes it in PyTorch: dumped at each level that is asked for, after one training step.

    python transformer_torch.py FOLDER LEVEL ...

FOLDER/weights.npz holds the weights by the names used here, and the input and labels; the dumps go to
FOLDER/torch/LEVEL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from msprobe.pytorch import PrecisionDebugger

HEADS = 2


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.o_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, HEADS, width // HEADS).permute(0, 2, 1, 3)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) * (width // HEADS) ** -0.5
        context = torch.matmul(functional.softmax(scores, dim=-1), v)
        return self.o_proj(context.permute(0, 2, 1, 3).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x)))


class EncoderLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.self_attn = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TransformerClassifier(nn.Module):
    def __init__(self, words: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(EncoderLayer(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(torch.mean(self.norm(x), dim=1))


def main(level: str, folder: Path) -> None:
    arrays = dict(np.load(folder / "weights.npz", allow_pickle=False))
    ids, labels = (torch.from_numpy(arrays.pop(name)) for name in ("ids", "labels"))
    depth = len({name.split(".")[1] for name in arrays if name.startswith("layers.")})
    model = TransformerClassifier(*arrays["embed_tokens.weight"].shape, depth, len(arrays["classifier.bias"]))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    config = folder / f"torch {level}.json"
    content = {"task": "statistics", "level": level, "risk_level": "ALL", "statistics": {}}
    content["dump_path"] = str(folder / "torch" / level)
    config.write_text(json.dumps(content), encoding="utf-8")
    debugger = PrecisionDebugger(str(config))
    debugger.start(model)
    functional.cross_entropy(model(ids), labels).backward()
    debugger.stop()
    debugger.step()
    debugger.reset()


if __name__ == "__main__":
    for each in sys.argv[2:]:
        main(each, Path(sys.argv[1]))
