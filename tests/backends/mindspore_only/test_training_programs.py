"""Kinds of training that `test_real_models` has not: two optimizers, recomputation, mixed precision, experts, in place.

Each meets each task and each way of it, the levels taking turns, and gives the bits that it gives without the tool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dumped
import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, mint, nn, ops
from trainings import collecting

from probe.backends.mindspore.internals import HAS_NODES

WIDTH, HEADS, WORDS, LENGTH, STEPS = 16, 2, 30, 6, 2
KINDS: dict[str, dict[str, Any]] = {
    "statistics": {"task": "statistics"},
    "md5": {"task": "statistics", "summary_mode": "md5"},
    "xor": {"task": "statistics", "summary_mode": "xor"},
    "asynchronous statistics": {"task": "statistics", "async_dump": True},
    "tensor": {"task": "tensor"},
    "structure": {"task": "structure"},
}
LEVELS = ("L0", "L1", "mix")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed precision writes source code into the working directory."""
    monkeypatch.chdir(tmp_path)


# --- models


class Words(nn.Cell):
    """An embedding, something in between, and a row of scores for each word."""

    def __init__(self, body: nn.Cell) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(WORDS, WIDTH), body, nn.Dense(WIDTH, WORDS)

    def construct(self, tokens: Any) -> Any:
        return ops.reshape(self.head(self.body(self.words(tokens))), (-1, WORDS))


class EncoderDecoder(nn.Cell):
    """Attention to another sequence: here the same one, backwards. Its dropout has other masks in each run."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(WIDTH, HEADS, 1, 1, 24, dropout=0.0, batch_first=True)

    def construct(self, x: Any) -> Any:
        return self.transformer(ops.flip(x, (1,)), x)


class Block(nn.Cell):
    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm((WIDTH,)), nn.Dense(WIDTH, 24), nn.Dense(24, WIDTH)
        self.act, self.drop = nn.GELU(), nn.Dropout(p=dropout)

    def construct(self, x: Any) -> Any:
        return x + self.drop(self.down(self.act(self.up(self.norm(x)))))


class RecomputedCalls(nn.Cell):
    """Without dropout: in a call that is recomputed its masks are others in each run."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(0.0), Block(0.0)])

    def construct(self, x: Any) -> Any:
        for block in self.blocks:
            x = ms.recompute(block, x)
        return x


def recomputed_cells() -> nn.Cell:
    blocks = nn.SequentialCell(Block(), Block())
    for block in blocks:
        block.recompute()
    return blocks


class Experts(nn.Cell):
    """Each word goes to the two experts that its scores choose; some experts get none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Dense(WIDTH, 4, has_bias=False)
        self.experts = nn.CellList([nn.SequentialCell(nn.Dense(WIDTH, 24), nn.GELU(), nn.Dense(24, WIDTH))] * 2)
        self.experts.extend([Block(), Block()])

    def construct(self, words: Any) -> Any:
        x = ops.reshape(words, (-1, WIDTH))
        weights, chosen = ops.topk(ops.softmax(self.gate(x), -1), 2, -1)
        out = ops.zeros_like(x)
        for number, expert in enumerate(self.experts):
            at = ops.nonzero(ops.equal(chosen, number))
            if at.shape[0]:
                part = expert(ops.gather(x, at[:, 0], 0)) * ops.reshape(ops.gather_nd(weights, at), (-1, 1))
                out = ops.tensor_scatter_add(out, at[:, :1], part)
        return ops.reshape(out, words.shape) + words


class InPlace(nn.Cell):
    """Writes into results, into a part of one, and into what another cell returned."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.drop = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH), nn.Dropout(p=0.2)

    def construct(self, x: Any) -> Any:
        y = self.one(x)
        y += x
        z = self.two(y * 1)
        z[:, :, :4].mul_(3.0)
        z.sub_(self.drop(y)).mul_(0.5)
        z[:, 0] = 0.25
        return mint.add(z, y)


class Convolutions(nn.Cell):
    """Of an image made of the words; batch normalization, and a residual sum in place before the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, has_bias=True), nn.BatchNorm2d(4)
        self.relu, self.last = nn.ReLU(), nn.Conv2d(4, 1, 1)

    def construct(self, words: Any) -> Any:
        x = self.relu(self.norm1(self.conv1(ops.expand_dims(words, 1))))
        y = self.norm2(self.conv2(x))
        y.add_(x)
        return ops.squeeze(self.last(self.relu(y)), 1) + words


class Recurrent(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH // 2, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)

    def construct(self, x: Any) -> Any:
        out, (hidden, _) = self.lstm(x)
        return out * (1 + ops.mean(hidden))


class Adversaries(nn.Cell):
    """The critic has no dropout: called twice in one step its masks are others in each run."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.SequentialCell(nn.Dense(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dense(8, 4))
        self.critic = nn.SequentialCell(nn.Dense(4, 8), nn.LeakyReLU(0.2), nn.Dense(8, 1))


def transformer() -> nn.Cell:
    return Words(nn.SequentialCell(Block(), Block()))


MODELS: dict[str, Callable[[], nn.Cell]] = {
    "encoder and decoder": lambda: Words(EncoderDecoder()),
    "recomputed calls": lambda: Words(RecomputedCalls()),
    "recomputed cells": lambda: Words(recomputed_cells()),
    "experts": lambda: Words(Experts()),
    "in place": lambda: Words(InPlace()),
    "convolutions": lambda: Words(Convolutions()),
    "LSTM of two layers": lambda: Words(Recurrent()),
    "adversaries": Adversaries,
    "mixed precision O2": lambda: amp.auto_mixed_precision(transformer(), "O2", ms.float16),
    "mixed precision auto": lambda: amp.auto_mixed_precision(transformer(), "auto", ms.float16),
}
OTHER_ORDER = ("encoder and decoder", "in place", "experts", "convolutions")
"""Models in which MindSpore without gradient nodes (2.7.0, 2.7.1) adds gradients in another order, see
`test_real_models`."""
OTHER_ROUNDING = ("mixed precision O2",)
"""There also the forward is rounded at another place, as docs/reference/backends.md says."""

# --- how they are trained

Around = Callable[[nn.Cell, Callable[[], None]], None]
Save = Callable[[Any, str], None]


def losses(name: str, model: nn.Cell, number: int, save: Save) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The losses of one step, each with the part of the model that is trained by it."""
    rng = np.random.default_rng(number)
    if name == "adversaries":
        noise, real = (ms.Tensor(rng.normal(size=(6, size)).astype(np.float32)) for size in (3, 4))

        def of_critic() -> Any:
            fake = ops.stop_gradient(model.maker(noise))
            save(fake, "fake")
            return ops.mean(model.critic(real)) - ops.mean(model.critic(fake))

        yield "critic", of_critic
        yield "maker", lambda: -ops.mean(model.critic(model.maker(noise)))
        return
    words = rng.integers(0, WORDS, (3, LENGTH + 1))
    tokens, labels = ms.Tensor(words[:, :-1], ms.int32), ms.Tensor(words[:, 1:].reshape(-1), ms.int32)

    def of_words() -> Any:
        scores = model(tokens)
        save(scores, "scores")
        # Not nn.CrossEntropyLoss: for the same input it does not always return the same last bit.
        return ops.nll_loss(ops.log_softmax(ops.cast(scores, ms.float32), 1), labels)

    yield "", of_words


def train(backend: Any, name: str, around: Around, save: Save = lambda value, name: None) -> dict[str, bytes]:
    """All that can be seen of two steps, each called through `around`."""
    # First, because a dropout layer of MindSpore draws its seed when it is made.
    ms.set_seed(3)
    model, rng = MODELS[name](), np.random.default_rng(1)
    for _, parameter in model.parameters_and_names():
        if parameter.requires_grad:
            values = (rng.normal(size=parameter.shape) * 0.3).astype(np.float32)
            parameter.set_data(ms.Tensor(values).astype(parameter.dtype))
    model.set_train()
    parts = ("critic", "maker") if name == "adversaries" else ("",)
    optimizers = {
        part: nn.AdamWeightDecay((getattr(model, part) if part else model).trainable_params(), 0.01) for part in parts
    }
    seen: dict[str, Any] = {}

    def step(number: int) -> None:
        for part, loss in losses(name, model, number, save):
            optimizer = optimizers[part]
            value, gradients = ms.value_and_grad(loss, None, optimizer.parameters)()
            optimizer(gradients)
            seen[f"{number} loss {part}"] = value.asnumpy().copy()
            for parameter, gradient in zip(optimizer.parameters, gradients):
                seen[f"{number} {part} {parameter.name}.grad"] = ops.cast(gradient, ms.float32).asnumpy().copy()

    for number in range(STEPS):
        around(model, functools.partial(step, number))
    # With the buffers of batch normalization and the optimizers' own state.
    for part, optimizer in optimizers.items():
        seen.update({f"{part} {at.name}": ops.cast(at, ms.float32).asnumpy() for at in optimizer.get_parameters()})
    seen.update({at.name: ops.cast(at, ms.float32).asnumpy() for at in model.get_parameters()})
    found = {name: np.asarray(value).tobytes() for name, value in seen.items()}
    found["random numbers"] = backend.random_state()
    return found


@functools.cache
def without_the_tool(backend: Any, name: str) -> dict[str, bytes]:
    return train(backend, name, lambda model, step: step())


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("name", MODELS)
def test_the_programs_repeat_themselves_and_train(backend: Any, name: str) -> None:
    """Otherwise equal bits with the tool would say nothing, nor would others."""
    first, again = without_the_tool(backend, name), train(backend, name, lambda model, step: step())
    assert first == again
    gradients = {key: value for key, value in first.items() if key.endswith(".grad")}
    # Of a bias before batch normalization and before softmax next to nothing is left.
    assert len([key for key, value in gradients.items() if any(value)]) > 0.8 * len(gradients) > 0


def selected() -> Iterator[Any]:
    for index, name in enumerate(MODELS):
        for place, kind in enumerate(KINDS):
            level = LEVELS[(index + place + place // 3) % 3]
            yield pytest.param(name, level, kind, id=f"{name}-{level}-{kind}")


def different(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    assert list(found) == list(expected)
    return [key for key, value in expected.items() if found[key] != value]


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize(("name", "level", "kind"), list(selected()))
def test_training_gives_the_same_bits(runs: Any, backend: Any, name: str, level: str, kind: str) -> None:
    expected = without_the_tool(backend, name)
    found = different(train(backend, name, collecting(runs.new(level=level, **KINDS[kind]))), expected)
    if HAS_NODES or level == "L1" or name not in OTHER_ORDER + OTHER_ROUNDING:
        assert found == []
    elif name in OTHER_ORDER:
        assert "0 loss " not in found, "a forward is never changed"
    if (level, kind) == ("L1", "structure"):
        return  # the tree of modules of a level without modules
    dump = runs.read(STEPS - 1)
    assert len(dump.tree if kind == "structure" else dump.data) >= 5, "something was collected"
    assert all(parent is None or parent in dump.tree for parent in dump.tree.values())


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("name", MODELS)
def test_saving_single_values_changes_nothing(runs: Any, backend: Any, name: str) -> None:
    """Level debug: what a loss function sees is saved with its gradient, from inside of it."""
    debugger = runs.new(level="debug", task="tensor" if len(name) % 2 else "statistics")

    def around(model: nn.Cell, step: Callable[[], None]) -> None:
        step()
        debugger.step()

    found = train(backend, name, around, debugger.save)
    assert different(found, without_the_tool(backend, name)) == []
    saved = dumped.read_debug(runs.path, STEPS - 1)["data"]
    gradient = saved[f"{'fake' if name == 'adversaries' else 'scores'}_grad.0.debug"]
    assert (gradient is None) == (name == "adversaries"), "what comes out of stop_gradient has none"
