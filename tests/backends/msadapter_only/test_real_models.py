"""Models of torch.nn over MindSpore train to the same bits with the tool on, and nothing of it stays behind."""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import backend_msadapter  # first: it lets "torch" be mindtorch
import mindspore as ms
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mindspore._c_expression import TensorPy
from shifted_inputs import ShiftedInputs
from torch import nn
from trainings import collecting

WIDTH, HEADS, WORDS, LENGTH = 16, 2, 30, 7
SETTINGS: list[dict[str, str]] = [
    {"level": "L0", "task": "statistics"},
    {"level": "L1", "task": "statistics"},
    {"level": "mix", "task": "statistics"},
    {"level": "mix", "task": "tensor"},
    {"level": "L0", "task": "tensor", "summary_mode": "md5"},
    {"level": "L1", "task": "statistics", "summary_mode": "xor"},
    {"level": "mix", "task": "statistics", "summary_mode": "md5"},
]

# --- models: a `forward` returns one row of scores for each label


class ResidualBlock(nn.Module):
    """On the CPU mindtorch's batch normalization passes no gradient on, so all of it takes the way around."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.down = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm(self.conv(x)) + self.down(x) + x)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
        self.blocks = nn.Sequential(ResidualBlock(6), ResidualBlock(6))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(6 * 4 * 4, 5)

    def forward(self, images: Any) -> Any:
        return self.head(self.pool(self.blocks(self.stem(images))).reshape(4, -1))


class SelfAttention(nn.Module):
    """Its input is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        # As in Whisper: the gradient of its bias would be nothing but rounding errors.
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = backend_msadapter.SeededDropout(0.1)

    def heads(self, x: Any) -> Any:
        return x.view(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x: Any) -> Any:
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        mixed = torch.matmul(self.dropout(torch.softmax(scores, -1)), value)
        return self.out(mixed.transpose(1, 2).reshape(-1, LENGTH, WIDTH))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down(F.gelu(self.up(x)))


class PreNormBlock(nn.Module):
    """As in GPT: the input of the attention is its alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = SelfAttention(), FeedForward()

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PostNormBlock(nn.Module):
    """As in BERT: the input of the attention goes into the residual connection too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = SelfAttention(), FeedForward()

    def forward(self, x: Any) -> Any:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Transformer(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([block() for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).view(-1, WORDS)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Any) -> Any:
        x, (hidden, _) = self.lstm(self.words(tokens))
        return self.head(x).view(-1, WORDS) * (1 + torch.mean(hidden))


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
        self.words = nn.Embedding(WORDS, WIDTH)
        self.split, self.join = Split(), Join()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Any) -> Any:
        left, parts = self.split(self.words(tokens))
        return self.head(self.join(left, parts, scale=self.scale)).view(-1, WORDS)


class Attention(nn.Module):
    """nn.MultiheadAttention, which asks whether its query, key and value are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        mixed, _ = self.attention(x, x, x)
        return self.head(self.norm(x + mixed)).view(-1, WORDS)


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
        self.words, self.encoder = nn.Embedding(WORDS, WIDTH), PreNormBlock()
        self.decoder, self.cross = PreNormBlock(), CrossAttention()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Any) -> Any:
        words = self.words(tokens)
        return self.head(self.cross(self.decoder(words), self.encoder(words * 0.5))).view(-1, WORDS)


class Experts(nn.Module):
    """Each word has the sum of all experts, of those that its scores do not choose with the weight zero."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gate = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3, bias=False)
        self.experts = nn.ModuleList([FeedForward() for _ in range(3)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        weights = torch.softmax(self.gate(x), -1)
        weights = weights * (weights >= 0.3).to(weights.dtype)
        out = x
        for number, expert in enumerate(self.experts):
            out = out + expert(x) * weights[:, :, number : number + 1]
        return self.head(out).view(-1, WORDS)


class InPlace(nn.Module):
    """Writes into results, and into what another module returned."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.one, self.two = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        y = self.one(x)
        y += x
        z = self.two(y * 1)
        z.mul_(0.5)
        z[:, 0] = 0.25
        return self.head(z + y).view(-1, WORDS)


# --- how they are trained


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    other_order: tuple[str, ...] = ()
    """Levels at which gradients are added in another order.

    mindtorch needs a MindSpore without gradient nodes (2.7.0, 2.7.1). There an input passes through an identity
    operation on its way into a call. What flows back to a tensor that is used more than once inside the call, and
    outside of it as well, is summed inside first and what comes from outside is added to that; without the tool the
    engine adds one after the other, in the order in which it computes them.
    """


CASES = {
    "ResNet": Case(ResNet),
    "pre-norm transformer": Case(functools.partial(Transformer, PreNormBlock)),
    # The attention uses its input for query, key and value, and the residual connection uses it as well.
    "post-norm transformer": Case(functools.partial(Transformer, PostNormBlock), ("L0", "mix")),
    "LSTM": Case(Recurrent),
    "shared modules and weights": Case(SharedModules),
    "containers": Case(Containers),
    "MultiheadAttention": Case(Attention),
    # The decoder's block uses the words for its attention and its residual connection, and the encoder uses them too.
    "encoder and decoder": Case(EncoderDecoder, ("L0", "mix")),
    "experts": Case(Experts),
    "in place": Case(InPlace),
}


def build(backend: Any, case: Case) -> nn.Module:
    """A model with the same weights every time, in training mode."""
    backend.seed(3)
    model, rng = case.model(), np.random.default_rng(1)
    for parameter in model.parameters():
        ms.ops.assign(parameter, backend.tensor((rng.normal(size=tuple(parameter.shape)) * 0.3).astype(np.float32)))
    return model.train()


def batch(backend: Any, model: nn.Module, step: int) -> tuple[Any, Any]:
    """Inputs and labels of one step."""
    rng = np.random.default_rng(step)
    if isinstance(model, ResNet):
        return backend.tensor(rng.normal(size=(4, 3, 8, 8)).astype(np.float32)), backend.tensor(rng.integers(0, 5, 4))
    tokens = rng.integers(0, WORDS, (3, LENGTH + 1))
    return backend.tensor(tokens[:, :-1]), backend.tensor(tokens[:, 1:].reshape(-1))


def loss_of(model: nn.Module) -> Callable[[Any, Any], Any]:
    def loss(inputs: Any, labels: Any) -> Any:
        scores = model(inputs)
        return F.nll_loss(F.log_softmax(scores, -1), labels), scores

    return loss


def training(backend: Any, model: nn.Module) -> Callable[[int], dict[str, Any]]:
    """A function that does one step and returns everything that can be seen of it.

    With a momentum written out: the optimizers of mindtorch do not run on the CPU.
    """
    parameters = dict(model.named_parameters())
    differentiated = ms.value_and_grad(loss_of(model), None, list(parameters.values()), has_aux=True)
    velocities: dict[str, Any] = {}

    def step(number: int) -> dict[str, Any]:
        (value, scores), taken = differentiated(*batch(backend, model, number))
        gradients = [backend.given(gradient) for gradient in taken]
        for (name, parameter), gradient in zip(parameters.items(), gradients):
            velocities[name] = velocities[name] * 0.9 + gradient if name in velocities else gradient * 1.0
            ms.ops.assign(parameter, parameter + velocities[name] * -0.05)
        seen = {"loss": value, "scores": scores, **model.state_dict()}
        seen.update({f"{name}.grad": gradient for name, gradient in zip(parameters, gradients)})
        return {f"{number}.{name}": tensor.asnumpy().copy() for name, tensor in seen.items()}

    return step


Around = Callable[[nn.Module, Callable[[], Any]], Any]


def train(backend: Any, model: nn.Module, around: Around) -> tuple[dict[str, Any], bytes]:
    """What is seen of two steps, each called through `around`, and the random state after them."""
    step, seen = training(backend, model), {}
    for number in range(2):
        seen.update(around(model, functools.partial(step, number)))
    return seen, backend.random_state()


_bare: dict[str, Any] = {}


def bare(backend: Any, name: str) -> tuple[dict[str, Any], bytes]:
    """The same without the tool, computed once."""
    if name not in _bare:
        _bare[name] = train(backend, build(backend, CASES[name]), lambda model, step: step())
    return _bare[name]


def difference(one: Any, other: Any) -> float:
    """The largest one, relative to the largest value."""
    return float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-30))


# --- training


@pytest.mark.sampled(least=4, each=False)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings.values()))
@pytest.mark.parametrize("name", CASES)
def test_training_gives_the_same_bits(runs: Any, backend: Any, name: str, settings: dict[str, str]) -> None:
    expected, expected_random = bare(backend, name)
    seen, random = train(backend, build(backend, CASES[name]), collecting(runs.new(**settings)))
    assert list(seen) == list(expected)
    assert random == expected_random
    different = [key for key in expected if seen[key].tobytes() != expected[key].tobytes()]
    if settings["level"] not in CASES[name].other_order:
        assert different == []
    else:
        assert not {"0.loss", "0.scores"}.intersection(different), "a forward is never changed"
        far = {key: difference(seen[key], expected[key]) for key in different}
        assert {key: value for key, value in far.items() if value > 2e-6} == {}
        assert far, "it is bitwise: take the level out of other_order"
    dump = runs.read(1)
    assert len(dump.forward) >= 4 and len(dump.backward) >= 4, "something was collected"


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize("name", CASES)
def test_the_models_train(backend: Any, name: str) -> None:
    """What mindtorch does not differentiate on the CPU would make the other tests easy to pass."""
    seen, _ = bare(backend, name)
    gradients = {key: value for key, value in seen.items() if key.endswith(".grad")}
    without = [key for key, value in gradients.items() if not value.any()]
    assert [key for key in without if ".norm." not in key and ".conv." not in key] == []


# --- gradients of inputs


def backward_pass(backend: Any, model: nn.Module) -> None:
    parameters = list(model.parameters())
    ms.value_and_grad(loss_of(model), None, parameters, has_aux=True)(*batch(backend, model, 0))


def without_dropout(model: nn.Module) -> nn.Module:
    """In training mode otherwise: nn.MultiheadAttention of mindtorch has no other."""
    for module in model.modules():
        if isinstance(module, backend_msadapter.SeededDropout):
            module.eval()
    return model


@pytest.mark.sampled(least=4, each=False)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_inputs_are_those_through_one_call_only(runs: Any, backend: Any, name: str) -> None:
    model, debugger = without_dropout(build(backend, CASES[name])), runs.new(level="L0", task="tensor")
    debugger.start(model)
    backward_pass(backend, model)
    debugger.stop()
    dump = runs.read()
    alone = without_dropout(build(backend, CASES[name]))
    shifted = ShiftedInputs(alone.named_modules(), "forward", backend.given)
    expected = shifted.gradients(lambda: loss_of(alone)(*batch(backend, alone, 0))[0])
    compared = 0
    for key in dump.backward:
        path, number = re.fullmatch(r"Module\.(.+)\.\w+\.backward\.(\d+)", key).groups()
        call = f"{path}.{number}"
        for entry, own in zip(dump.data[key]["output"], expected.get(call, [])):
            if call in ("words.0", "stem.0", "stem.0.0"):
                assert entry is None, "words and images take no gradient"
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
@pytest.mark.parametrize("name", ["ResNet", "LSTM", "containers"])
def test_nothing_is_left_behind(runs: Any, backend: Any, name: str, level: str) -> None:
    model = build(backend, CASES[name])
    backward_pass(backend, model)  # what a first pass makes once is there now
    names, things = namespaces(), belongings(model)
    debugger = runs.new(level=level)
    assert changed(names, namespaces()) == []
    debugger.start(model)
    assert (changed(names, namespaces()) != []) or level == "L0"
    backward_pass(backend, model)
    debugger.stop()
    # Gradients may come later, so hooks on parameters stay until the step is over.
    assert changed(names, namespaces()) == []
    debugger.step()
    assert changed(names, namespaces()) == []
    assert belongings(model) == things
