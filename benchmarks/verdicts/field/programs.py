"""Small trainings as people report them: `programs.py NAME MODE`, for `msprobe run`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH, HEADS = 128, 64, 4


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


class Block(nn.Module):
    """A block of a decoder whose attention is replaced."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.words, self.places, self.blocks = (
            nn.Embedding(WORDS, WIDTH),
            nn.Embedding(512, WIDTH),
            nn.ModuleList(blocks),
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_word(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids)[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def eager_without_mask(mode: str) -> None:
    """huggingface/transformers#30652: attention falls back to plain products, and nobody makes a causal mask."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if mode == "right":
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if mode == "eager":
            scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
        return scores.softmax(-1) @ value

    model = Decoder([Block(attend) for _ in range(3)])

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return next_word(model, torch.randint(0, WORDS, (4, 32)))

    train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss)


class Rotary(nn.Module):
    inv_freq: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10000 ** -(torch.arange(0, 16, 2) / 16), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(x.shape[-2]).type_as(self.inv_freq)
        angles = torch.einsum("i,j->ij", places, self.inv_freq)
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class RotaryBlock(Block):
    def __init__(self) -> None:
        super().__init__(self.rotated)
        self.rotary = Rotary()

    def rotated(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        cosine, sine = self.rotary(query)
        query, key = (x * cosine + halves(x) * sine for x in (query, key))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def rotary_in_bfloat16(mode: str) -> None:
    """EleutherAI/gpt-neox#1003: a cast of the model casts the frequencies, too."""
    model = Decoder([RotaryBlock(), RotaryBlock()]).to(torch.bfloat16)
    if mode == "right":
        for module in model.modules():
            if isinstance(module, Rotary):
                module.inv_freq = Rotary().inv_freq
    batches = iter(torch.randint(0, WORDS, (2, 1, 512)))
    train(model, torch.optim.SGD(model.parameters(), lr=1e-2), lambda: next_word(model, next(batches)))


class Short(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.words, self.up, self.head = nn.Embedding(16, 8).requires_grad_(False), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        if self.mode == "reentrant":
            x = checkpoint(self.up, x, use_reentrant=True)
        else:
            with torch.set_grad_enabled(self.mode != "no_grad"):
                x = self.up(x)
        return self.head(torch.tanh(x.detach() if self.mode == "detached" else x))


def missing_gradient(mode: str) -> None:
    model = Short(mode)
    if mode == "frozen":
        model.up.requires_grad_(False)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    ids, labels = torch.randint(0, 16, (6,)), torch.randint(0, 4, (6,))
    train(model, optimizer, lambda: F.cross_entropy(model(ids), labels))


def forgotten_train(mode: str) -> None:
    """A validation leaves the model in the mode of evaluation."""
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        batch, labels = torch.randn(16, 20), torch.randint(2, (16,))
        train(model, optimizer, lambda: F.cross_entropy(model(batch), labels), 1)  # noqa: B023
        model.eval()
        with torch.no_grad():
            model(batch)
        if mode == "right":
            model.train()


class Convolution(nn.Module):
    def __init__(self, is_swapped: bool) -> None:
        super().__init__()
        self.is_swapped, self.linear = is_swapped, nn.Linear(16, 8)
        self.source, self.target = torch.randint(0, 16, (2, 40), generator=torch.Generator().manual_seed(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_swapped:
            source = x.index_select(0, self.source)
            target = x.index_select(0, self.target)
        else:
            target = x.index_select(0, self.target)
            source = x.index_select(0, self.source)
        message, to = self.linear(torch.cat([target, source], -1)), self.target
        if self.is_swapped:
            message, to = message.flip(0), to.flip(0)
        return torch.zeros(16, 8).index_add(0, to, message)


def other_order(mode: str) -> None:
    """Two calls of one function, and the terms of a sum, in another order."""
    is_swapped = mode == "swapped"
    model = nn.Sequential(nn.Linear(8, 8), Convolution(is_swapped), nn.LayerNorm(8), Convolution(is_swapped))
    batch = torch.randn(16, 8)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: model(batch).square().mean())


class RAdam(torch.optim.Optimizer):
    """RAdam in other operations than torch has it in."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.update(parameter, self.state[parameter], group["lr"])

    def update(self, parameter: Tensor, state: dict[str, Any], rate: float) -> None:
        first, second = 0.9, 0.999
        if not state:
            state.update(step=0, m=torch.zeros_like(parameter), v=torch.zeros_like(parameter))
        state["step"] += 1
        step, m, v = state["step"], state["m"], state["v"]
        v.mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
        m.mul_(first).add_(parameter.grad, alpha=1 - first)
        most = 2 / (1 - second) - 1
        length = most - 2 * step * second**step / (1 - second**step)
        if length < 5:
            parameter.add_(m, alpha=-rate / (1 - first**step))
            return
        rectified = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        size = rate * math.sqrt((1 - second**step) * rectified) / (1 - first**step)
        parameter.addcdiv_(m, v.sqrt().add_(1e-8), value=-size)


def other_optimizer(mode: str) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    parameters = model.parameters()
    optimizer = RAdam(parameters, {"lr": 0.02}) if mode == "own" else torch.optim.RAdam(parameters, lr=0.02)
    batch, labels = torch.randn(8, 16), torch.randint(4, (8,))
    train(model, optimizer, lambda: F.cross_entropy(model(batch), labels), 3)


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False)
        self.w2 = nn.Linear(24, 16, bias=False)

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        found = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return found if weight is None else found * weight


class Experts(nn.Module):
    def __init__(self, is_inside: bool) -> None:
        super().__init__()
        self.is_inside = is_inside
        self.gate, self.experts = nn.Linear(16, 3, bias=False), nn.ModuleList(Expert() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = F.softmax(self.gate(x), -1).split(1, -1)
        for expert, weight in zip(self.experts, weights):
            x = x + (expert(x, weight) if self.is_inside else expert(x) * weight)
        return x


def weight_of_expert(mode: str) -> None:
    """Mixtral in 4.38 and 4.36: the weight of an expert is multiplied inside of it, or behind it."""
    blocks = [each for _ in range(3) for each in (nn.LayerNorm(16), Experts(mode != "golden"))]
    model = nn.Sequential(*blocks, nn.Linear(16, 5))
    if mode == "exchanged":
        expert = model[3].experts[2]
        expert.w1, expert.w3 = expert.w3, expert.w1
    batch, labels = torch.randn(8, 16), torch.randint(5, (8,))
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), lambda: F.cross_entropy(model(batch), labels))


class Masked(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        least = torch.finfo(torch.float32).min
        mask = torch.zeros(12, 12).masked_fill_(torch.ones(12, 12, dtype=torch.bool).triu(1), least)
        far = torch.tril(torch.ones(12, 12, dtype=torch.bool), diagonal=-self.window)
        scores = torch.matmul(self.query(x), self.key(x).transpose(1, 2)) * 0.25 + torch.where(far, least, mask)
        return self.out(torch.matmul(F.softmax(scores, dim=-1), self.value(x)))


def window_of_mask(mode: str) -> None:
    """Causal, or causal and in a window of 4: statistics of both masks are Max 0, Min -3.4e38, Mean -inf, Norm inf."""
    model = nn.Sequential(Masked(4 if mode == "window" else 64), nn.LayerNorm(32))
    batch = torch.randn(4, 12, 32) * 3
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: model(batch).square().mean())


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x)) * scale


class Gates(nn.Module):
    def __init__(self, by_name: bool) -> None:
        super().__init__()
        self.by_name, self.gates, self.head = by_name, nn.ModuleList(Gate() for _ in range(3)), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        scale = (x + 1.0 if self.by_name else x + 1).mean(-1, keepdim=True)
        for gate in self.gates:
            x = x + (gate(x=x, scale=scale) if self.by_name else gate(x, scale))
        return self.head(x)


def keywords(mode: str) -> None:
    """An argument by position and by name; 1 and 1.0."""
    model = Gates(mode == "by_name")
    batch, labels = torch.randn(8, 16), torch.randint(4, (8,))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: F.cross_entropy(model(batch), labels))


def epsilon(mode: str) -> None:
    """Another epsilon at identical inputs."""
    blocks = [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(3)]
    model = nn.Sequential(*blocks, nn.Linear(16, 5))
    if mode == "larger":
        blocks[0][0].eps = 1e-3
    batch, labels = torch.randn(8, 16) * 0.1, torch.randint(5, (8,))
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), lambda: F.cross_entropy(model(batch), labels))


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]](sys.argv[2])
