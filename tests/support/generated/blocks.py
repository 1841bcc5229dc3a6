"""The blocks that generated models are made of: small, and healthy with all that looks unhealthy in real models.

Each takes and gives a tensor of samples by positions by `WIDTH`. Masks of -inf, routers that drop experts with -inf,
buffers that are allocated and then written piece by piece: nothing of these is a finding.
"""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generated.communication import Run, copied, exchanged, gathered, summed

SAMPLES, POSITIONS, WIDTH = 2, 4, 8
_HEADS = 2
_EXPERTS = 4


class Block(nn.Module):
    """What every block has: the run that it is part of, set before each step, and the ranks that share its tensors."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__()
        self.shards = shards
        self.run: Run
        self.ranks: tuple[int, ...]
        self.site = Site()
        self.has_module_site = draw.random() < 0.6

    def fault(self, h: Tensor) -> Tensor:
        return self.run.module_site(self.site, h) if self.has_module_site else self.run.site(h)


class Site(nn.Module):
    """A module that gives back what it gets, where no fault is planted."""

    def __init__(self) -> None:
        super().__init__()
        self.run: Run

    def forward(self, h: Tensor) -> Tensor:
        return self.run.inside(h)


class Mlp(Block):
    """Two layers, whose columns and rows the shards have a part of each."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__(draw, shards)
        self.up = nn.Linear(WIDTH, 2 * WIDTH // shards)
        self.down = nn.Linear(2 * WIDTH // shards, WIDTH)
        self.activation = draw.choice((torch.relu, F.gelu, F.silu, torch.tanh, F.leaky_relu))
        self.gathers = draw.random() < 0.3

    def forward(self, h: Tensor) -> Tensor:
        inner = self.run.use(self.up, copied(h, self.run, self.ranks))
        inner = self.fault(self.activation(inner))
        if self.gathers:
            whole = gathered(inner, self.run, self.ranks)
            return h + whole[..., :WIDTH]
        return h + summed(self.run.use(self.down, inner), self.run, self.ranks)


class Attention(Block):
    """Causal attention, with the mask in one of the ways in which models write it."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__(draw, shards)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kind = draw.choice(("masked_fill", "additive", "where", "lowest", "logarithm", "fused", "fused_additive"))

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.run.use(self.qkv, h).chunk(3, -1)
        q, k, v = (self._heads(each) for each in (q, k, v))
        if self.kind.startswith("fused"):
            mixed = self.fault(F.scaled_dot_product_attention(q, k, v, attn_mask=self._mask(h)))
        else:
            scores = self._masked(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), h)
            mixed = self.fault(F.softmax(scores, dim=-1)) @ v
        joined = mixed.transpose(1, 2).reshape(h.shape)
        return h + self.run.use(self.out, joined)

    def _heads(self, each: Tensor) -> Tensor:
        return each.reshape(*each.shape[:-1], _HEADS, -1).transpose(1, 2)

    def _allowed(self, h: Tensor) -> Tensor:
        return torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).tril()

    def _mask(self, h: Tensor) -> Tensor:
        if self.kind == "fused":
            return self._allowed(h)
        return torch.full((POSITIONS, POSITIONS), -math.inf, dtype=h.dtype).triu(1)

    def _masked(self, scores: Tensor, h: Tensor) -> Tensor:
        allowed = self._allowed(h)
        if self.kind == "masked_fill":
            return scores.masked_fill(~allowed, -math.inf)
        if self.kind == "where":
            return torch.where(allowed, scores, torch.tensor(-math.inf, dtype=h.dtype))
        if self.kind == "lowest":
            return scores + torch.full_like(scores, torch.finfo(h.dtype).min).masked_fill(allowed, 0.0)
        if self.kind == "logarithm":
            return scores + torch.log(allowed.to(h.dtype))
        return scores + torch.full((POSITIONS, POSITIONS), -math.inf, dtype=h.dtype).triu(1)


class Convolution(Block):
    """A convolution over the positions, normalised over the batch or in groups."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__(draw, shards)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm = draw.choice((nn.BatchNorm1d(WIDTH), nn.GroupNorm(2, WIDTH)))
        self.pools = draw.random() < 0.5

    def forward(self, h: Tensor) -> Tensor:
        inner = self.norm(self.run.use(self.convolution, h.transpose(1, 2)))
        inner = self.fault(F.relu(inner))
        if self.pools:
            inner = F.max_pool1d(inner, 3, stride=1, padding=1)
        return h + inner.transpose(1, 2)


class Layers(Block):
    """A list of layers, of which one may be called twice."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__(draw, shards)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(draw.randint(2, 4)))
        self.order = [*range(len(self.layers)), *draw.choices(range(len(self.layers)), k=draw.randint(0, 1))]
        self.faulty = draw.randrange(len(self.order))

    def forward(self, h: Tensor) -> Tensor:
        for number, layer in enumerate(self.order):
            h = torch.tanh(self.run.use(self.layers[layer], h))
            if number == self.faulty:
                h = self.fault(h)
        return h


class Recurrent(Block):
    """A recurrent layer, whose output is a tuple."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__(draw, shards)
        self.layer = draw.choice((nn.GRU, nn.LSTM, nn.RNN))(WIDTH, WIDTH, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        # At L1 nothing is recorded of some of these layers.
        is_seen = self.run.case.level != "L1"
        output, _ = self.run.use(self.layer, h) if is_seen else self.layer(h)
        return h + self.fault(output)


class Experts(Block):
    """A router that drops all experts but the best with -inf; the tokens of the shards change places and come back."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__(draw, shards)
        self.router = nn.Linear(WIDTH, _EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(_EXPERTS))

    def forward(self, h: Tensor) -> Tensor:
        scores = self.run.use(self.router, h)
        best, chosen = scores.topk(2, dim=-1)
        kept = torch.full_like(scores, -math.inf).scatter(-1, chosen, best)
        weights = self.fault(F.softmax(kept, dim=-1))
        tokens = h.reshape(-1, WIDTH)
        tokens = exchanged(tokens, self.run, self.ranks)
        done = torch.stack([self.run.use(expert, tokens) for expert in self.experts], -1)
        done = exchanged(done.reshape(-1, WIDTH * _EXPERTS), self.run, self.ranks).reshape(*h.shape, _EXPERTS)
        return h + (done * weights.unsqueeze(-2)).sum(-1)


class Buffer(Block):
    """Memory that is allocated first and written piece by piece, as caches of keys and values are."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__(draw, shards)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.kind = draw.choice(("pieces", "copies", "out"))

    def forward(self, h: Tensor) -> Tensor:
        inner = self.run.use(self.layer, h)
        kept = torch.empty_like(inner.detach())
        if self.kind == "pieces":
            kept[:, : POSITIONS // 2] = inner.detach()[:, : POSITIONS // 2]
            kept[:, POSITIONS // 2 :] = inner.detach()[:, POSITIONS // 2 :]
        elif self.kind == "copies":
            for position in range(POSITIONS):
                kept[:, position].copy_(inner.detach()[:, position])
        else:
            torch.mul(inner.detach(), 1.0, out=kept)
        return h + self.fault(inner + 0.1 * kept)


class Norm(Block):
    """A norm, of the library or by hand."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__(draw, shards)
        self.norm = nn.LayerNorm(WIDTH)
        self.is_by_hand = draw.random() < 0.5

    def forward(self, h: Tensor) -> Tensor:
        if self.is_by_hand:
            size = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
            return self.fault(h * size * self.norm.weight)
        return self.fault(self.run.use(self.norm, h))


class Vocabulary(Block):
    """Scores of a vocabulary that the shards have parts of, filled up with -inf to parts of one size."""

    def __init__(self, draw: random.Random, shards: int) -> None:
        super().__init__(draw, shards)
        self.scores, self.words = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH // 2 * shards, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        scores = self.fault(self.run.use(self.scores, h))
        if self.run.rank == self.ranks[-1]:
            scores = scores.masked_fill(torch.arange(WIDTH // 2) > 1, -math.inf)
        whole = gathered(scores, self.run, self.ranks)
        return h + self.run.use(self.words, F.softmax(whole, dim=-1))


BLOCKS: dict[str, type[Block]] = {
    "mlp": Mlp, "attention": Attention, "convolution": Convolution, "list": Layers, "recurrent": Recurrent,
    "experts": Experts, "buffer": Buffer, "norm": Norm, "vocabulary": Vocabulary,
}  # fmt: skip
