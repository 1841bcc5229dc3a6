"""Models and kinds of training over mindtorch give the bits with the tool that they give without it, and nothing stays.

Each model meets each task and each way of it, the levels taking turns. What mindtorch does not run on the CPU, and so
has no test here, is in docs/reference/backends.md.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import backend_msadapter  # first: it lets "torch" be mindtorch
import mindspore as ms
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mindspore._c_expression import TensorPy
from shifted_inputs import ShiftedInputs
from torch import nn
from torch.utils.checkpoint import checkpoint
from trainings import collecting

WIDTH, HEADS, WORDS, LENGTH, STEPS = 16, 2, 30, 6, 2
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


class PostNormBlock(nn.Module):
    """As in BERT: the input of the attention goes into the residual connection too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = RotaryAttention(), Gated()

    def forward(self, x: Any) -> Any:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class CrossAttention(nn.Module):
    """Attention to another sequence: here the same one, before the layer was at it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Any, memory: Any) -> Any:
        scores = torch.matmul(self.query(x), self.key(memory).transpose(1, 2)) / math.sqrt(WIDTH)
        return self.norm(x + torch.matmul(torch.softmax(scores, -1), self.value(memory)))


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Block(Gated(), layer_norm), Block(Gated(), layer_norm)
        self.cross = CrossAttention()

    def forward(self, words: Any) -> Any:
        return self.cross(self.decoder(words), self.encoder(words * 0.5))


class Attention(nn.Module):
    """nn.MultiheadAttention, which asks whether its query, key and value are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        mixed, _ = self.attention(x, x, x)
        return self.norm(x + mixed)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Any) -> Any:
        x, (hidden, _) = self.lstm(x)
        return x * (1 + torch.mean(hidden))


class SharedModules(nn.Module):
    """One module is called several times, and the head has the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.again = self.mix
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        x = x + self.norm(self.mix(x))
        x = x + self.norm(self.again(self.mix(x)))
        return F.linear(x.view(-1, WIDTH), self.words.weight)


class Split(nn.Module):
    """Returns a tuple and a dict in one."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        left = torch.tanh(self.left(x))
        return left, {"right": self.right(x), "both": [x, left]}


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, left: Any, parts: Any, scale: Any = None) -> Any:
        x, again = parts["both"]
        return self.norm(left * parts["right"] + again) * scale + x


class Containers(nn.Module):
    """Modules that return and take tuples, dicts and lists of tensors, and keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.split, self.join, self.scale = Split(), Join(), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        left, parts = self.split(x)
        return self.join(left, parts, scale=self.scale)


class InPlace(nn.Module):
    """Writes into results, and into what another module returned."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.one(x)
        y += x
        z = self.two(y * 1)
        z.mul_(0.5)
        z[:, 0] = 0.25
        return z + y


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


class Checkpointed(Words):
    """In both ways. In mindtorch 0.5.1 both call the block and recompute nothing."""

    def called(self, number: int, block: nn.Module, x: Any) -> Any:
        return checkpoint(block, x, use_reentrant=bool(number))


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


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama": lambda: Words(Block(Gated(), RootMeanSquare)),
    "post-norm transformer": lambda: Words(PostNormBlock(), PostNormBlock()),
    "encoder and decoder": lambda: Words(EncoderDecoder()),
    "MultiheadAttention": lambda: Words(Attention()),
    "LSTM": lambda: Words(Recurrent()),
    "shared modules and weights": SharedModules,
    "containers": lambda: Words(Containers()),
    "routed experts": lambda: Words(Experts()),
    "in place": lambda: Words(InPlace()),
    "ViT": VisionTransformer,
    "convolutions in place": Convolutions,
    "adversaries": Adversaries,
    "checkpoints": lambda: Checkpointed(Dense(), Dense()),
    "autocast": lambda: Autocast(Words(Dense())),
}
OTHER_ORDER = ("Llama", "post-norm transformer", "encoder and decoder")
"""Models in which gradients are added in another order while modules are collected.

mindtorch needs a MindSpore without gradient nodes (2.7.0, 2.7.1). There an input passes through an identity
operation on its way into a call. What flows back to a tensor that is used more than once inside the call, and
outside of it as well, is summed inside first and what comes from outside is added to that; without the tool the
engine adds one after the other, in the order in which it computes them. `RootMeanSquare`, the attention of a post-norm
block and the decoder's block use their input so.
"""


# --- how they are trained

Around = Callable[[nn.Module, Callable[[], None]], None]


def build(backend: Any, name: str) -> nn.Module:
    """A model with the same weights every time, in training mode."""
    backend.seed(3)
    model, rng = MODELS[name]().train(), np.random.default_rng(1)
    for parameter in model.parameters():
        ms.ops.assign(parameter, backend.tensor((rng.normal(size=tuple(parameter.shape)) * 0.3).astype(np.float32)))
    return model


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


def train(backend: Any, name: str, around: Around) -> dict[str, Any]:
    """All that can be seen of two steps, each called through `around`.

    With a momentum written out: the optimizers of mindtorch do not run on the CPU.
    """
    model = build(backend, name)
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


@pytest.mark.sampled(least=5, each=False)
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


# --- gradients of inputs

OF_ONE_CALL = ("Llama", "encoder and decoder", "MultiheadAttention", "LSTM", "shared modules and weights", "containers")


def difference(one: Any, other: Any) -> float:
    """The largest one, relative to the largest value."""
    return float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-30))


def backward_pass(backend: Any, name: str, model: nn.Module) -> None:
    ((part, loss),) = losses(name, model)
    ms.value_and_grad(loss, None, list(part.parameters()))(*batch(backend, name, 0))


def without_dropout(model: nn.Module) -> nn.Module:
    """In training mode otherwise: nn.MultiheadAttention of mindtorch has no other."""
    for module in model.modules():
        if isinstance(module, backend_msadapter.SeededDropout):
            module.eval()
    return model


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize("name", OF_ONE_CALL)
def test_gradients_of_inputs_are_those_through_one_call_only(runs: Any, backend: Any, name: str) -> None:
    model, debugger = without_dropout(build(backend, name)), runs.new(level="L0", task="tensor")
    debugger.start(model)
    backward_pass(backend, name, model)
    debugger.stop()
    dump = runs.read()
    alone = without_dropout(build(backend, name))
    shifted = ShiftedInputs(alone.named_modules(), "forward", backend.given)
    expected = shifted.gradients(lambda: losses(name, alone)[0][1](*batch(backend, name, 0)))
    compared = 0
    for key in dump.backward:
        path, number = re.fullmatch(r"Module\.(.+)\.\w+\.backward\.(\d+)", key).groups()
        call = f"{path}.{number}"
        for entry, own in zip(dump.data[key]["output"], expected.get(call, [])):
            if call == "words.0":
                assert entry is None, "words take no gradient"
            else:
                found = np.load(dump.folder / "dump_tensor_data" / entry["data_name"])
                assert difference(found, own) < 1e-5, key
                compared += 1
    assert compared >= len(dump.backward) // 2


# --- what is left behind


def namespaces() -> dict[str, Any]:
    """Every function that users can reach by name, and the methods of the classes they use."""
    paths = ("", ".nn", ".nn.functional", ".distributed")
    names = [f"{root}{path}" for root in ("torch", "mindtorch") for path in paths]
    names += ["mindspore.ops", "mindspore.mint", "mindspore.common.api"]
    owners = {name: importlib.import_module(name) for name in names}
    owners.update({kind.__name__: kind for kind in (torch.Tensor, TensorPy, nn.Parameter, nn.Module, ms.nn.Cell)})
    owners["compiler"] = ms.common.api._JitExecutor
    members = [(owner, name, value) for owner, held in owners.items() for name, value in vars(held).items()]
    return {f"{owner}.{name}": value for owner, name, value in members if callable(value)}


def belongings(model: nn.Module) -> dict[str, Any]:
    """Everything that hangs on the modules, parameters and buffers of a model."""
    found: dict[str, Any] = {}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for path, parameter in model.named_parameters():
        found[f"{path} hooks"] = len(parameter.hooks())
    for path, holder in [*model.named_modules(), *tensors]:
        found[f"{path} class"] = type(holder)
        for name, value in vars(holder).items():
            found[f"{path}.{name}"] = dict(value) if isinstance(value, dict) else id(value)
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    missing = object()
    names = [*before, *(name for name in after if name not in before)]
    return [name for name in names if before.get(name, missing) is not after.get(name, missing)]


@pytest.mark.sampled()
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("name", ["convolutions in place", "LSTM", "containers"])
def test_nothing_is_left_behind(runs: Any, backend: Any, name: str, level: str) -> None:
    model = build(backend, name)
    backward_pass(backend, name, model)  # what a first pass makes once is there now
    names, things = namespaces(), belongings(model)
    debugger = runs.new(level=level)
    assert changed(names, namespaces()) == []
    debugger.start(model)
    assert (changed(names, namespaces()) != []) or level == "L0"
    backward_pass(backend, name, model)
    debugger.stop()
    # Gradients may come later, so hooks on parameters stay until the step is over.
    assert changed(names, namespaces()) == []
    debugger.step()
    assert changed(names, namespaces()) == []
    assert belongings(model) == things
