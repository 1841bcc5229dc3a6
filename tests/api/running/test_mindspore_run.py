"""``msprobe run`` with MindSpore: functions of gradients, `Model.train`, and graph mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from forks import run_python
from running import quick, run

PRELUDE = """
import mindspore as ms, numpy as np
from mindspore import nn, train, dataset

np.random.seed(0)
ms.set_seed(0)
x, y = np.random.randn(20, 8).astype(np.float32), np.random.randint(0, 4, 20).astype(np.int32)
net, loss = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4)), nn.CrossEntropyLoss()
"""
CELLS = ["0.Dense", "1.ReLU", "2.Dense"]


def test_steps_end_with_the_optimizer_and_evaluation_belongs_to_none(tmp_path: Path) -> None:
    program = """
optimizer = nn.Adam(net.trainable_params(), 1e-2)

def forward(x, y):
    return loss(net(x), y)

gradient = ms.value_and_grad(forward, None, optimizer.parameters)
for step in range(4):
    for _ in range(2):
        value, gradients = gradient(ms.Tensor(x), ms.Tensor(y))
    optimizer(gradients)
    net(ms.Tensor(x))
print("parameters", [float(p.asnumpy().sum()).hex() for p in net.trainable_params()])
"""
    ran = run(tmp_path, PRELUDE + program, "--step", "1-2")
    assert (ran.status, ran.steps) == (0, ["step1", "step2"]), ran.err
    expected = [f"Cell.{cell}.forward.{number}" for number in (0, 1) for cell in CELLS]
    assert ran.forwards(1, "Cell") == ran.forwards(2, "Cell") == expected
    bare = run_python("mindspore", tmp_path / "train.py")
    assert bare.returncode == 0, bare.stderr
    assert bare.stdout.splitlines()[-1] in ran.out.splitlines()


TURNS = """
def network(inputs=8):
    return nn.SequentialCell(nn.Dense(inputs, 16), nn.ReLU(), nn.Dense(16, 8))

def sgd(cell):
    return nn.SGD(cell.trainable_params(), 0.1)

def update(optimizer, of_loss):
    value, gradients = ms.value_and_grad(of_loss, None, optimizer.parameters)()
    optimizer(gradients)

x = ms.Tensor(x)
"""


@pytest.mark.parametrize(
    ("steps", "program"),
    [
        # Cross validation.
        (
            6,
            """
kept = []
for fold in range(3):
    net = network()
    kept.append((net, sgd(net)))
    for step in range(2):
        update(kept[-1][1], lambda: net(x).sum())
    net.set_train(False)(x)
""",
        ),
        # Pretraining, then a head of its own; the body still records gradients.
        (
            7,
            """
body, head = network(), network()
optimizers = [sgd(body), sgd(head)]
for step in range(4):
    update(optimizers[0], lambda: (body(x) - x).pow(2).mean())
for step in range(3):
    update(optimizers[1], lambda: head(body(x)).sum())
""",
        ),
        # A generator and a discriminator, which is updated twice.
        (
            3,
            """
G, D = network(), network()
of_G, of_D = sgd(G), sgd(D)
for step in range(3):
    for _ in range(2):
        update(of_D, lambda: (D(x) - D(ms.ops.stop_gradient(G(x)))).sum())
    update(of_G, lambda: D(G(x)).sum())
""",
        ),
        # Gradients of all parameters, of which a part is used in turns.
        (
            4,
            """
net = network()
parts = [nn.SGD(net[0].trainable_params(), 0.1), nn.SGD(net[2].trainable_params(), 0.1)]
gradient = ms.value_and_grad(lambda: net(x).sum(), None, [*parts[0].parameters, *parts[1].parameters])
for step in range(4):
    value, gradients = gradient()
    parts[step % 2](gradients[:2] if step % 2 == 0 else gradients[2:])
""",
        ),
        # Cells that train, one after the other.
        (
            5,
            """
cells = []
for fold in range(2):
    net = nn.WithLossCell(network(), nn.MSELoss())
    cells.append(nn.TrainOneStepCell(net, sgd(net)))
    for step in range(2 + fold):
        cells[-1](x, x)
""",
        ),
    ],
    ids=["folds", "pretraining", "adversaries", "turns", "cells"],
)
def test_steps_are_those_that_a_person_counts(tmp_path: Path, steps: int, program: str) -> None:
    options = ("--step", "all", "--level", "L0", "--task", "structure")
    ran = quick("mindspore and the tool", tmp_path, PRELUDE + TURNS + program, *options)
    assert (ran.status, ran.warnings, len(ran.steps)) == (0, [], steps), ran.err


def test_the_network_of_a_model_is_what_is_trained(tmp_path: Path) -> None:
    program = """
ms.set_context(mode=ms.PYNATIVE_MODE)
data = dataset.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(5)
model = train.Model(net, loss, nn.Momentum(net.trainable_params(), 0.1, 0.9), metrics={"acc"})
model.train(1, data, dataset_sink_mode=False)
model.eval(data, dataset_sink_mode=False)
"""
    ran = quick("mindspore and the tool", tmp_path, PRELUDE + program, "--step", "all", "--level", "L0")
    assert (ran.status, len(ran.steps)) == (0, 4), ran.err
    inside = [f"Cell._backbone.{cell}.forward.0" for cell in CELLS]
    outside = ["Cell._backbone.SequentialCell.forward.0", "Cell._loss_fn.CrossEntropyLoss.forward.0"]
    assert ran.forwards(3, "Cell") == inside + outside


def test_what_is_compiled_is_not_seen_and_that_is_reported(tmp_path: Path) -> None:
    program = """
ms.set_context(mode=ms.GRAPH_MODE)
net(ms.Tensor(x))
print("ended")
"""
    ran = quick("mindspore and the tool", tmp_path, PRELUDE + program)
    assert (ran.status, ran.steps) == (0, []) and "ended" in ran.out
    (line,) = ran.warnings
    assert "msprobe run collected nothing: start: MindSpore is in graph mode" in line


def test_layers_in_variables_of_their_own_are_models(tmp_path: Path) -> None:
    program = """
words, memory, head = nn.Embedding(10, 8), nn.LSTM(8, 6, batch_first=True), nn.Dense(6, 4)
layers = nn.CellList([words, memory, head])
parameters = layers.trainable_params()
del layers
optimizer = nn.SGD(parameters, 0.1)

def forward(x, y):
    states, _ = memory(words(x))
    return loss(head(states[:, -1]), y)

gradient = ms.value_and_grad(forward, None, optimizer.parameters)
for step in range(3):
    value, gradients = gradient(ms.Tensor(np.arange(10).reshape(2, 5).astype(np.int32)), ms.Tensor(y[:2]))
    optimizer(gradients)
"""
    ran = quick("mindspore and the tool", tmp_path, PRELUDE + program, "--level", "L0")
    assert (ran.status, ran.steps, ran.warnings) == (0, ["step0", "step1"], []), ran.err
    bases = ["Cell.Embedding", "Cell.model~2.LSTM", "Cell.model~3.Dense"]
    for step in (0, 1):
        assert [name for name in ran.forwards(step, "Cell") if ".rnn." not in name] == [f"{b}.forward.0" for b in bases]
        data = ran.data(step)
        assert {f"{base}.{what}.0" for base in bases for what in ("backward", "parameters_grad")} <= set(data)
        assert "weight_ih_l0" in data["Cell.model~2.LSTM.parameters_grad.0"]


def test_names_of_a_second_model_are_none_of_the_first(tmp_path: Path) -> None:
    program = """
first = nn.SequentialCell(nn.Dense(8, 8), nn.SequentialCell(nn.Dense(8, 8)))
second = nn.SequentialCell(nn.Dense(8, 8))
parameters = [*first.trainable_params(), *second.trainable_params()]
gradient = ms.value_and_grad(lambda x: second(first(x)).sum(), None, parameters)
gradient(ms.Tensor(x))
"""
    ran = quick("mindspore and the tool", tmp_path, PRELUDE + program, "--level", "L0")
    cells = ["0.Dense", "1.0.Dense", "1.SequentialCell", "model~2.0.Dense"]
    assert ran.forwards(0, "Cell") == [f"Cell.{cell}.forward.0" for cell in cells]
