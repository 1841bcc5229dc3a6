"""Kinds of training that `test_real_models` has not: two optimizers, checkpointing, autocast, routed experts, a ViT.

Each meets each task and each way of it, the levels taking turns, and gives the bits that it gives without the tool.
What mindtorch does not run on the CPU, and so has no test here, is in docs/reference/backends.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import backend_msadapter  # first: it lets "torch" be mindtorch
import mindspore as ms
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from trainings import collecting

WIDTH, HEADS, WORDS, LENGTH, STEPS = 16, 2, 30, 6, 3
KINDS: dict[str, dict[str, str]] = {
    "statistics": {"task": "statistics"},
    "md5": {"task": "statistics", "summary_mode": "md5"},
    "xor": {"task": "statistics", "summary_mode": "xor"},
    "tensor": {"task": "tensor"},
}
"""The task structure, which saves no values, is in `test_neutrality`."""
LEVELS = ("L0", "L1", "mix")

# --- models


class RootMeanSquare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class RotaryAttention(nn.Module):
    """Causal, with positions that turn queries and keys; all heads have the same key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = nn.Linear(WIDTH, self.size, bias=False), nn.Linear(WIDTH, self.size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        angles = np.outer(np.arange(LENGTH), 100.0 ** -np.linspace(0, 1, self.size // 2)).repeat(2, 1)
        self.register_buffer("cos", torch.tensor(np.cos(angles).astype(np.float32)))
        self.register_buffer("sin", torch.tensor(np.sin(angles).astype(np.float32)))
        self.register_buffer("mask", torch.tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)))

    def turned(self, x: Any) -> Any:
        half = self.size // 2
        return x * self.cos + torch.cat([-x[..., half:], x[..., :half]], -1) * self.sin

    def forward(self, x: Any) -> Any:
        query = self.turned(self.query(x).view(-1, LENGTH, HEADS, self.size).transpose(1, 2))
        key, value = self.turned(self.key(x).unsqueeze(1)), self.value(x).unsqueeze(1)
        key, value = torch.cat([key] * HEADS, 1), torch.cat([value] * HEADS, 1)
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.size) + self.mask
        mixed = torch.matmul(torch.softmax(scores, -1), value)
        return self.out(mixed.transpose(1, 2).reshape(-1, LENGTH, WIDTH))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.down = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Each word goes to the two experts that its scores choose."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3, bias=False)
        self.experts = nn.ModuleList([Gated() for _ in range(3)])

    def forward(self, words: Any) -> Any:
        x = words.reshape(-1, WIDTH)
        weights, chosen = torch.topk(torch.softmax(self.gate(x), -1), 2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            at = np.argwhere(chosen.asnumpy() == number)
            if len(at):
                rows, places = torch.tensor(at[:, 0]), torch.tensor(at[:, 0] * 2 + at[:, 1])
                part = expert(torch.index_select(x, 0, rows)) * torch.index_select(weights.view(-1, 1), 0, places)
                out = torch.index_add(out, 0, rows, part)
        return out.reshape(words.shape) + words


def layer_norm() -> nn.Module:
    return nn.LayerNorm(WIDTH)


class Block(nn.Module):
    def __init__(self, mlp: nn.Module, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = norm(), RotaryAttention(), norm(), mlp

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Dense(nn.Module):
    """A residual block with a dropout that draws from numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.drop = backend_msadapter.SeededDropout(0.2)

    def forward(self, x: Any) -> Any:
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Words(nn.Module):
    """An embedding, blocks, and a row of scores for each word."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.words, self.blocks, self.head = nn.Embedding(WORDS, WIDTH), nn.ModuleList(blocks), nn.Linear(WIDTH, WORDS)

    def called(self, number: int, block: nn.Module, x: Any) -> Any:
        return block(x)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        for number, block in enumerate(self.blocks):
            x = self.called(number, block, x)
        return self.head(x).view(-1, WORDS)


class Autocast(nn.Module):
    """The blocks compute in float16, what comes out of them is float32 again."""

    def __init__(self, words: Words) -> None:
        super().__init__()
        self.inner = words

    def forward(self, tokens: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            scores = self.inner(tokens)
        assert scores.dtype == torch.float16
        return scores.float()


class VisionTransformer(nn.Module):
    """Patches of an image by a convolution, and a token of the class, which comes last because attention is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.label = nn.Conv2d(3, WIDTH, 4, stride=4), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.zeros(LENGTH - 1, WIDTH))
        self.block, self.head = Block(Gated(), layer_norm), nn.Linear(WIDTH, 5)

    def forward(self, images: Any) -> Any:
        patches = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.block(torch.cat([patches, self.label.expand(4, 1, WIDTH)], 1))[:, -1])


class Convolutions(nn.Module):
    """Batch normalization, a residual sum in place and an activation in place.

    On the CPU mindtorch's batch normalization passes no gradient on, so all of it takes the way around.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.act = nn.Conv2d(6, 6, 3, padding=1), backend_msadapter.ReLU()
        self.head = nn.Linear(6 * 4 * 20, 5)

    def forward(self, images: Any) -> Any:
        x = self.conv1(images)
        x = self.act(self.norm1(x) + x)
        y = self.conv2(x)
        y += x
        return self.head(self.act(y).flatten(1))


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1, bias=False))


class Checkpointed(Words):
    """In both ways. In mindtorch 0.5.1 both call the block and recompute nothing."""

    def called(self, number: int, block: nn.Module, x: Any) -> Any:
        return checkpoint(block, x, use_reentrant=bool(number))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama": lambda: Words(Block(Gated(), RootMeanSquare)),
    "routed experts": lambda: Words(Experts()),
    "ViT": VisionTransformer,
    "convolutions in place": Convolutions,
    "adversaries": Adversaries,
    "checkpoints": lambda: Checkpointed(Dense(), Dense()),
    "autocast": lambda: Autocast(Words(Dense())),
}

OTHER_ORDER = ("Llama",)
"""Models in which gradients are added in another order while modules are collected, see `test_real_models`.

What `RootMeanSquare` gets is used twice in it, and by the residual connection.
"""

# --- how they are trained


def batch(backend: Any, name: str, number: int) -> tuple[Any, Any]:
    """Inputs and labels of one step, or noise and what is not made of it."""
    rng = np.random.default_rng(number)
    if name == "adversaries":
        arrays = rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=(6, 4)).astype(np.float32)
    elif name in ("ViT", "convolutions in place"):
        arrays = rng.normal(size=(4, 3, 4, 20)).astype(np.float32), rng.integers(0, 5, 4)
    else:
        words = rng.integers(0, WORDS, (3, LENGTH + 1))
        arrays = words[:, :-1], words[:, 1:].reshape(-1)
    return backend.tensor(arrays[0]), backend.tensor(arrays[1])


def losses(name: str, model: Any) -> list[tuple[nn.Module, Callable[[Any, Any], Any]]]:
    """The losses of a step, each with the part of the model that is trained by it."""
    if name != "adversaries":
        return [(model, lambda inputs, labels: F.nll_loss(F.log_softmax(model(inputs), -1), labels))]

    def of_critic(noise: Any, real: Any) -> Any:
        # On the CPU a difference of two tensors passes no gradient on, so the second is added with its sign changed.
        return model.critic(real).mean() + model.critic(model.maker(noise).detach()).mean() * -1.0

    return [(model.critic, of_critic), (model.maker, lambda noise, real: -model.critic(model.maker(noise)).mean())]


Around = Callable[[nn.Module, Callable[[], None]], None]


def train(backend: Any, name: str, around: Around) -> dict[str, Any]:
    """All that can be seen of three steps, each called through `around`.

    With a momentum written out: the optimizers of mindtorch do not run on the CPU.
    """
    backend.seed(3)
    model, rng = MODELS[name]().train(), np.random.default_rng(1)
    for parameter in model.parameters():
        ms.ops.assign(parameter, backend.tensor((rng.normal(size=tuple(parameter.shape)) * 0.3).astype(np.float32)))
    parts = [
        (dict(part.named_parameters()), ms.value_and_grad(loss, None, list(part.parameters())))
        for part, loss in losses(name, model)
    ]
    velocities: dict[tuple[int, str], Any] = {}
    seen: dict[str, Any] = {}

    def step(number: int) -> None:
        for part, (parameters, differentiated) in enumerate(parts):
            value, taken = differentiated(*batch(backend, name, number))
            seen[f"{number} {part} loss"] = value.asnumpy().copy()
            for (key, parameter), gradient in zip(parameters.items(), map(backend.given, taken)):
                seen[f"{number} {part} {key}.grad"] = gradient.asnumpy().copy()
                velocity = velocities.get((part, key))
                velocities[part, key] = gradient * 1.0 if velocity is None else velocity * 0.9 + gradient
                ms.ops.assign(parameter, parameter + velocities[part, key] * -0.05)

    for number in range(STEPS):
        around(model, functools.partial(step, number))
    seen.update({key: tensor.asnumpy() for key, tensor in model.state_dict().items()})
    return {**seen, "random numbers": np.frombuffer(backend.random_state(), np.uint8)}


@functools.cache
def without_the_tool(backend: Any, name: str) -> dict[str, Any]:
    return train(backend, name, lambda model, step: step())


def different(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    assert list(found) == list(expected)
    return [key for key, value in expected.items() if found[key].tobytes() != value.tobytes()]


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("name", MODELS)
def test_the_programs_train(backend: Any, name: str) -> None:
    """What mindtorch does not differentiate on the CPU would make the other test easy to pass."""
    gradients = {key: value for key, value in without_the_tool(backend, name).items() if key.endswith(".grad")}
    assert all(np.isfinite(value).all() for value in gradients.values())
    without = {key.split(" ", 2)[2] for key, value in gradients.items() if not value.any()}
    if name == "convolutions in place":
        assert without == {"norm1.weight.grad", "norm1.bias.grad"}
    else:
        assert without == set()


def selected() -> Iterator[Any]:
    for index, name in enumerate(MODELS):
        for place, kind in enumerate(KINDS):
            level = LEVELS[(index + place) % 3]
            yield pytest.param(name, level, kind, id=f"{name}-{level}-{kind}")


@pytest.mark.sampled(least=4, each=False)
@pytest.mark.parametrize(("name", "level", "kind"), list(selected()))
def test_training_gives_the_same_bits(runs: Any, backend: Any, name: str, level: str, kind: str) -> None:
    expected = without_the_tool(backend, name)
    found = train(backend, name, collecting(runs.new(level=level, **KINDS[kind])))
    others = different(found, expected)
    if level == "L1" or name not in OTHER_ORDER:
        assert others == []
    else:
        assert not {"0 0 loss", "random numbers"}.intersection(others), "a forward is never changed"
        assert others, "it is bitwise: take the model out of OTHER_ORDER"
        for key in others:
            assert np.abs(found[key] - expected[key]).max() < 2e-6 * np.abs(expected[key]).max(), key
    dump = runs.read(STEPS - 1)
    assert len(dump.data) >= 5, "something was collected"
