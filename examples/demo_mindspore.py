"""Train a small language model in MindSpore for two steps under the tool and read what was collected."""

from __future__ import annotations

import math

import demo_summary
import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

from msprobe.mindspore import PrecisionDebugger, seed_all

WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 32


class Block(nn.Cell):
    """One transformer layer: attention and a feed-forward part, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
        self.qkv, self.projection = mint.nn.Linear(WIDTH, 3 * WIDTH), mint.nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = mint.nn.Linear(WIDTH, 4 * WIDTH), mint.nn.Linear(4 * WIDTH, WIDTH)
        self.future = ms.Tensor(~np.tri(LENGTH, dtype=bool))

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.reshape(batch, length, HEADS, -1).permute(0, 2, 1, 3)
            for part in mint.chunk(self.qkv(self.norm1(x)), 3, dim=2)
        )
        scores = mint.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(WIDTH // HEADS)
        weights = mint.nn.functional.softmax(scores.masked_fill(self.future, float("-inf")), dim=-1)
        x = x + self.projection(mint.matmul(weights, v).permute(0, 2, 1, 3).reshape(batch, length, WIDTH))
        return x + self.contract(ops.gelu(self.expand(self.norm2(x))))


class ByteModel(nn.Cell):
    """Predicts the next byte of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.CellList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm((WIDTH,)), mint.nn.Linear(WIDTH, 256)

    def construct(self, tokens: ms.Tensor) -> ms.Tensor:
        x = self.tokens(tokens) + self.positions(ms.Tensor(np.arange(tokens.shape[1], dtype=np.int32)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train() -> None:
    seed_all(1234)
    debugger = PrecisionDebugger(dump_path=demo_summary.OUTPUT, level="mix")
    text = np.array(demo_summary.text(), np.int32)
    model = ByteModel()
    optimizer = nn.Adam(model.trainable_params(), learning_rate=1e-3)

    def loss(tokens: ms.Tensor, targets: ms.Tensor) -> ms.Tensor:
        return ops.cross_entropy(model(tokens).reshape(-1, 256), targets)

    differentiated = ms.value_and_grad(loss, None, optimizer.parameters)
    for step in range(2):
        starts = np.random.randint(0, len(text) - LENGTH - 1, 8)
        batch = np.stack([text[start : start + LENGTH + 1] for start in starts])
        tokens, targets = ms.Tensor(batch[:, :-1].copy()), ms.Tensor(batch[:, 1:].reshape(-1))
        debugger.start(model)
        value, gradients = differentiated(tokens, targets)
        debugger.stop()
        debugger.step()
        optimizer(gradients)
        print(f"step {step}: loss {value.asnumpy():.4f}")


if __name__ == "__main__":
    demo_summary.show(train)
