"""Models of mindspore.nn train to the same bits with the tool on, and nothing of it stays behind."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, nn, ops
from mindspore._c_expression import TensorPy
from mindspore.common import api
from mindspore.communication import comm_func
from shifted_inputs import ShiftedInputs
from trainings import collecting

from probe.backends.mindspore.internals import HAS_NODES

WIDTH, HEADS, WORDS, LENGTH = 16, 2, 30, 7
SETTINGS: list[dict[str, str]] = [
    {"level": "L0", "task": "statistics"},
    {"level": "L1", "task": "statistics"},
    {"level": "mix", "task": "statistics"},
    {"level": "mix", "task": "tensor"},
]

# --- models: a `construct` returns one row of scores for each label


class ResidualBlock(nn.Cell):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, has_bias=True)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def construct(self, x: Any) -> Any:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + x)


class ResNet(nn.Cell):
    """Convolutions, batch normalization, residual connections around whole cells."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.SequentialCell(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.blocks = nn.SequentialCell(ResidualBlock(6), ResidualBlock(6))
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.head = nn.Dense(6 * 4 * 4, 5)

    def construct(self, images: Any) -> Any:
        return self.head(self.flatten(self.pool(self.blocks(self.stem(images)))))


class SelfAttention(nn.Cell):
    """Its input is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH)
        # As in Whisper: the gradient of its bias would be nothing but rounding errors.
        self.key = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.out = nn.Dense(WIDTH, WIDTH)
        self.dropout = nn.Dropout(p=0.1)

    def heads(self, x: Any) -> Any:
        return ops.transpose(ops.reshape(x, (-1, LENGTH, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    def construct(self, x: Any) -> Any:
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) / math.sqrt(WIDTH // HEADS)
        mixed = ops.matmul(self.dropout(ops.softmax(scores, -1)), value)
        return self.out(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, LENGTH, WIDTH)))


class FeedForward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)
        self.act = nn.GELU()

    def construct(self, x: Any) -> Any:
        return self.down(self.act(self.up(x)))


class PreNormBlock(nn.Cell):
    """As in GPT: the input of the attention is its alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
        self.attention, self.mlp = SelfAttention(), FeedForward()

    def construct(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PostNormBlock(nn.Cell):
    """As in BERT: the input of the attention goes into the residual connection too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
        self.attention, self.mlp = SelfAttention(), FeedForward()

    def construct(self, x: Any) -> Any:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Transformer(nn.Cell):
    def __init__(self, block: type[nn.Cell]) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.CellList([block() for _ in range(2)])
        self.norm = nn.LayerNorm((WIDTH,))
        self.head = nn.Dense(WIDTH, WORDS, has_bias=False)

    def construct(self, tokens: Any) -> Any:
        x = self.words(tokens) + self.places(ops.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return ops.reshape(self.head(self.norm(x)), (-1, WORDS))


class Recurrent(nn.Cell):
    """Layers of nn that return tuples, in which a state is carried on."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Dense(2 * WIDTH, WORDS)

    def construct(self, tokens: Any) -> Any:
        x, (hidden, _) = self.lstm(self.words(tokens))
        y, last = self.gru(x, hidden)
        states = ops.concat((y, x), 2)
        return ops.reshape(self.head(states), (-1, WORDS)) * (1 + ops.mean(last))


class SharedCells(nn.Cell):
    """One cell is called several times, and the head has the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Dense(WIDTH, WIDTH, activation="tanh")
        self.again = self.mix
        self.norm = nn.LayerNorm((WIDTH,))

    def construct(self, tokens: Any) -> Any:
        x = self.words(tokens)
        x = x + self.norm(self.mix(x))
        x = x + self.norm(self.again(self.mix(x)))
        return mint.matmul(ops.reshape(x, (-1, WIDTH)), self.words.embedding_table.T)


class Split(nn.Cell):
    """Returns a tuple and a dict in one."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH)

    def construct(self, x: Any) -> Any:
        left = mint.tanh(self.left(x))
        return left, {"right": self.right(x), "both": [x, left]}


class Join(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,))

    def construct(self, left: Any, parts: Any, scale: Any = None) -> Any:
        x, again = parts["both"]
        return self.norm(left * parts["right"] + again) * scale + x


class Containers(nn.Cell):
    """Cells that return and take tuples, dicts and lists of tensors, and keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.split, self.join = Split(), Join()
        self.scale = ms.Parameter(ops.ones((WIDTH,)))
        self.head = nn.Dense(WIDTH, WORDS)

    def construct(self, tokens: Any) -> Any:
        left, parts = self.split(self.words(tokens))
        return ops.reshape(self.head(self.join(left, parts, scale=self.scale)), (-1, WORDS))


class Attention(nn.Cell):
    """nn.MultiheadAttention, whose query, key and value are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm = nn.LayerNorm((WIDTH,))
        self.head = nn.Dense(WIDTH, WORDS)

    def construct(self, tokens: Any) -> Any:
        x = self.words(tokens)
        mixed, weights = self.attention(x, x, x)
        return ops.reshape(self.head(self.norm(x + mixed)), (-1, WORDS)) * (1 + ops.mean(weights * weights))


# --- how they are trained


class Case(NamedTuple):
    model: Callable[[], nn.Cell]
    optimizer: Callable[[Any], nn.Cell]
    other_order: tuple[str, ...] = ()
    """Levels at which MindSpore without gradient nodes (2.7.0, 2.7.1) adds gradients in another order.

    There an input passes through an identity operation on its way into a call. What flows back to a tensor that is
    used more than once inside the call, and outside of it as well, is summed inside first and what comes from outside
    is added to that; without the tool the engine adds one after the other, in the order in which it computes them.
    """


momentum = functools.partial(nn.Momentum, learning_rate=0.05, momentum=0.9)
adam = functools.partial(nn.AdamWeightDecay, learning_rate=0.01, weight_decay=0.01)
CASES = {
    "ResNet": Case(ResNet, momentum),
    "pre-norm transformer": Case(functools.partial(Transformer, PreNormBlock), adam),
    # The attention uses its input for query, key and value, and the residual connection uses it as well.
    "post-norm transformer": Case(functools.partial(Transformer, PostNormBlock), momentum, ("L0", "mix")),
    "LSTM and GRU": Case(Recurrent, momentum),
    "shared cells and weights": Case(SharedCells, adam),
    "containers": Case(Containers, adam),
    # It uses query, key and value, which are one tensor, in one matrix multiplication.
    "MultiheadAttention": Case(Attention, momentum),
}


def build(case: Case) -> nn.Cell:
    """A model with the same weights every time, in training mode."""
    # First, because a dropout layer of MindSpore draws its seed when it is made.
    ms.set_seed(3)
    model, rng = case.model(), np.random.default_rng(1)
    for _, parameter in model.parameters_and_names():
        if parameter.requires_grad:
            parameter.set_data(ms.Tensor((rng.normal(size=parameter.shape) * 0.3).astype(np.float32)))
    return model.set_train()


def batch(model: nn.Cell, step: int) -> tuple[Any, Any]:
    """Inputs and labels of one step."""
    rng = np.random.default_rng(step)
    if isinstance(model, ResNet):
        return ms.Tensor(rng.normal(size=(4, 3, 8, 8)).astype(np.float32)), ms.Tensor(rng.integers(0, 5, 4), ms.int32)
    tokens = rng.integers(0, WORDS, (3, LENGTH + 1))
    return ms.Tensor(tokens[:, :-1], ms.int32), ms.Tensor(tokens[:, 1:].reshape(-1), ms.int32)


def loss_of(model: nn.Cell) -> Callable[[Any, Any], Any]:
    def loss(inputs: Any, labels: Any) -> Any:
        scores = model(inputs)
        # Not nn.CrossEntropyLoss: for the same input it does not always return the same last bit.
        return ops.nll_loss(ops.log_softmax(scores, 1), labels), scores

    return loss


def training(case: Case, model: nn.Cell) -> Callable[[int], dict[str, Any]]:
    """A function that does one step and returns everything that can be seen of it."""
    optimizer = case.optimizer(model.trainable_params())
    differentiated = ms.value_and_grad(loss_of(model), None, optimizer.parameters, has_aux=True)

    def step(number: int) -> dict[str, Any]:
        (value, scores), gradients = differentiated(*batch(model, number))
        optimizer(gradients)
        seen = {"loss": value, "scores": scores}
        seen.update({f"{at.name}.grad": gradient for at, gradient in zip(optimizer.parameters, gradients)})
        # With the buffers of batch normalization and the optimizer's own state.
        seen.update({at.name: at for at in (*model.get_parameters(), *optimizer.get_parameters())})
        return {f"{number}.{name}": tensor.asnumpy().copy() for name, tensor in seen.items()}

    return step


Around = Callable[[nn.Cell, Callable[[], Any]], Any]


def train(backend: Any, model: nn.Cell, case: Case, around: Around) -> tuple[dict[str, Any], bytes]:
    """What is seen of two steps, each called through `around`, and the random state after them."""
    step, seen = training(case, model), {}
    for number in range(2):
        seen.update(around(model, functools.partial(step, number)))
    return seen, backend.random_state()


_bare: dict[str, Any] = {}


def bare(backend: Any, name: str) -> tuple[dict[str, Any], bytes]:
    """The same without the tool, computed once."""
    if name not in _bare:
        case = CASES[name]
        _bare[name] = train(backend, build(case), case, lambda model, step: step())
    return _bare[name]


def difference(one: Any, other: Any) -> float:
    """The largest one, relative to the largest value."""
    return float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-30))


# --- training


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings.values()))
@pytest.mark.parametrize("name", CASES)
def test_training_gives_the_same_bits(runs: Any, backend: Any, name: str, settings: dict[str, str]) -> None:
    case = CASES[name]
    expected, expected_random = bare(backend, name)
    seen, random = train(backend, build(case), case, collecting(runs.new(**settings)))
    assert list(seen) == list(expected)
    assert random == expected_random
    different = [key for key in expected if seen[key].tobytes() != expected[key].tobytes()]
    if HAS_NODES or settings["level"] not in case.other_order:
        assert different == []
    else:
        assert not {"0.loss", "0.scores"}.intersection(different), "a forward is never changed"
        far = {key: difference(seen[key], expected[key]) for key in different}
        assert {key: value for key, value in far.items() if value > 2e-6} == {}
        assert far, "it is bitwise: take the level out of other_order"
    dump = runs.read(1)
    assert len(dump.forward) >= 4 and len(dump.backward) >= 4, "something was collected"


# --- gradients of inputs


def backward_pass(model: nn.Cell) -> None:
    ms.value_and_grad(loss_of(model), None, model.trainable_params(), has_aux=True)(*batch(model, 0))


@pytest.mark.sampled(least=4, each=False)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_inputs_are_those_through_one_call_only(runs: Any, name: str) -> None:
    # In evaluation mode, so that dropout does nothing.
    model, debugger = build(CASES[name]).set_train(False), runs.new(level="L0", task="tensor")
    debugger.start(model)
    backward_pass(model)
    debugger.stop()
    dump = runs.read()
    alone = build(CASES[name]).set_train(False)
    shifted = ShiftedInputs(alone.cells_and_names(), "construct")
    expected = shifted.gradients(lambda: loss_of(alone)(*batch(alone, 0))[0])
    compared = 0
    for key in dump.backward:
        path, number = re.fullmatch(r"Cell\.(.+)\.\w+\.backward\.(\d+)", key).groups()
        call = f"{path}.{number}"
        for entry, own in zip(dump.data[key]["output"], expected.get(call, [])):
            if call in ("words.0", "places.0", "stem.0", "stem.0.0"):
                assert entry is None, "words and images take no gradient"
            else:
                found = np.load(dump.folder / "dump_tensor_data" / entry["data_name"])
                assert difference(found, own) < 1e-5, key
                compared += 1
    assert compared >= len(dump.backward) // 2


# --- what is left behind


def namespaces() -> dict[str, Any]:
    """Every function that users can reach by name, and the methods of the classes they use."""
    owners = [ops, mint, mint.nn, mint.nn.functional, mint.distributed, nn, comm_func, api]
    owners += [ms.Tensor, TensorPy, ms.Parameter, nn.Cell, ops.Primitive, api._JitExecutor]
    members = [(owner.__name__, name, value) for owner in owners for name, value in vars(owner).items()]
    return {f"{owner}.{name}": value for owner, name, value in members if callable(value)}


def belongings(model: nn.Cell) -> dict[str, Any]:
    """Everything that hangs on the cells, primitives and parameters of a model."""
    found: dict[str, Any] = {}
    holders = dict(model.cells_and_names())
    for path, cell in list(holders.items()):
        primitives = [(name, value) for name, value in vars(cell).items() if isinstance(value, ops.Primitive)]
        holders.update({f"{path}.{name}": value for name, value in primitives})
    for path, parameter in model.parameters_and_names():
        holders[path] = parameter
        found[f"{path} hooks"] = len(parameter.hooks())
    for path, holder in holders.items():
        found[f"{path} class"] = type(holder)
        for name, value in vars(holder).items():
            # MindSpore makes a dictionary for hooks when the first one is registered.
            found[f"{path}.{name}"] = (dict(value) or id(None)) if isinstance(value, dict) else id(value)
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    missing = object()
    names = [*before, *(name for name in after if name not in before)]
    return [name for name in names if before.get(name, missing) is not after.get(name, missing)]


@pytest.mark.sampled()
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("name", ["ResNet", "pre-norm transformer", "LSTM and GRU", "containers"])
def test_nothing_is_left_behind(runs: Any, name: str, level: str) -> None:
    model = build(CASES[name])
    backward_pass(model)  # what a first pass makes once is there now
    names, things = namespaces(), belongings(model)
    debugger = runs.new(level=level)
    assert changed(names, namespaces()) == []
    debugger.start(model)
    assert (changed(names, namespaces()) != []) or level == "L0"
    backward_pass(model)
    debugger.stop()
    # Gradients may come later, so hooks on parameters stay until the step is over.
    assert changed(names, namespaces()) == []
    debugger.step()
    assert changed(names, namespaces()) == []
    assert belongings(model) == things


# --- what calls write


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("write", ["assign", "assign_add", "scatter_nd_update", "Assign"])
def test_what_a_call_writes_into_a_parameter_stays_written(runs: Any, level: str, write: str) -> None:
    class Counter(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.total = ms.Parameter(ops.zeros((3,)))
            self.assign = ops.Assign()

        def construct(self, x: Any) -> Any:
            if write == "Assign":
                self.assign(self.total, x * 2)
            elif write == "scatter_nd_update":
                ops.scatter_nd_update(self.total, ms.Tensor([[0], [1], [2]], ms.int32), x * 2)
            else:
                getattr(ops, write)(self.total, x * 2)
            return x * self.total

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.counter = Counter()

        def construct(self, x: Any) -> Any:
            return ops.sum(self.counter(x) * x)

    model, debugger = Net(), runs.new(level=level)
    debugger.start(model)
    value, gradient = ms.value_and_grad(model, 0)(ms.Tensor([1.0, 2.0, 3.0]))
    debugger.stop()
    assert model.counter.total.asnumpy().tolist() == [2.0, 4.0, 6.0]
    assert value.item() == 2 + 16 + 54
    assert gradient.asnumpy().tolist() == [4.0, 16.0, 36.0]


LATE_ERROR = """
import mindspore as ms
import pytest
from mindspore import Tensor, nn, ops

class Failing(nn.Cell):
    def construct(self, x):
        y = x * 2
        y.fill_(1.0)  # has no kernel on the CPU
        return y * y

model = nn.SequentialCell(Failing(), nn.ReLU())
debugger = PrecisionDebugger(dump_path="dump", level=LEVEL)
debugger.start(model)
with pytest.raises(RuntimeError, match="InplaceFillScalar"):
    ms.value_and_grad(lambda x: ops.sum(model(x)), 0)(Tensor([1.0, 2.0]))[0].asnumpy()
debugger.stop()
"""


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_an_error_that_is_reported_late_reaches_the_program(backend: Any, tmp_path: Path, level: str) -> None:
    """MindSpore computes in the background and raises where a result is looked at first, which may be in a record.

    In a process of its own: after an exception MindSpore goes on recording gradients, for as long as the process lives.
    """
    backend.run_script(LATE_ERROR.replace("LEVEL", repr(level)), cwd=tmp_path)
    assert (tmp_path / "dump" / "step0").is_dir()
