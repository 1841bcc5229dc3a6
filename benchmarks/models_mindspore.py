"""The small GPT of `models_torch`, in MindSpore's dynamic graph, and one training step of it.

The calls are those of the torch model where MindSpore 2.7 has mint kernels for the CPU, else those of ops and Tensor.
"""

from __future__ import annotations

import math
import os

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops
from sizes import SIZES, Size, Training


class Attention(nn.Cell):
    """Causal self-attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = mint.nn.Linear(size.width, 3 * size.width)
        self.out = mint.nn.Linear(size.width, size.width)
        self.hidden = ms.Tensor(~np.tri(size.length, dtype=bool))

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.reshape(batch, length, self.heads, width // self.heads).permute(0, 2, 1, 3)
            for part in mint.chunk(self.qkv(x), 3, dim=2)
        )
        scores = mint.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(width // self.heads)
        weights = mint.nn.functional.softmax(scores.masked_fill(self.hidden, float("-inf")), dim=-1)
        return self.out(mint.matmul(weights, v).permute(0, 2, 1, 3).reshape(batch, length, width))


class Block(nn.Cell):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm((size.width,))
        self.attention = Attention(size)
        self.ln_2 = nn.LayerNorm((size.width,))
        self.up = mint.nn.Linear(size.width, 4 * size.width)
        self.act = nn.GELU()
        self.down = mint.nn.Linear(4 * size.width, size.width)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        x = x + self.attention(self.ln_1(x))
        return x + self.down(self.act(self.up(self.ln_2(x))))


class GPT(nn.Cell):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.blocks = nn.CellList([Block(size) for _ in range(size.layers)])
        self.ln = nn.LayerNorm((size.width,))
        self.head = mint.nn.Linear(size.width, size.vocabulary, bias=False)
        self.places = ms.Tensor(np.arange(size.length, dtype=np.int32))

    def construct(self, ids: ms.Tensor) -> ms.Tensor:
        x = self.tokens(ids) + self.positions(self.places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def measurable() -> None:
    """Make MindSpore do one thing after the other on one core.

    As it comes it hands every operation through a pipeline of four threads, which wait for each other by spinning: on
    two cores that other work shares, most of the CPU time of a step, and up to ten times its own, is then waiting.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    ms.runtime.launch_blocking()


def training(name: str, optimizer: bool = False) -> Training:
    """Build the model of size `name`; a step is forward, cross-entropy, backward and, on request, the optimizer."""
    measurable()
    ms.set_seed(0)
    size = SIZES[name]
    model = GPT(size)
    ids = np.random.default_rng(0).integers(size.vocabulary, size=(size.batch, size.length + 1), dtype=np.int32)
    inputs, targets = ms.Tensor(np.ascontiguousarray(ids[:, :-1])), ms.Tensor(ids[:, 1:].reshape(-1))
    weights = model.trainable_params()
    update = nn.SGD(weights, learning_rate=1e-3) if optimizer else None

    def loss(ids: ms.Tensor) -> ms.Tensor:
        return ops.cross_entropy(model(ids).reshape(-1, size.vocabulary), targets)

    differentiated = ms.value_and_grad(loss, None, weights)

    def step() -> None:
        _, gradients = differentiated(inputs)
        if update is not None:
            update(gradients)

    return Training(model, step)
