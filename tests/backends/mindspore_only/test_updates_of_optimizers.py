"""Steps of MindSpore's optimizers: those of nn and the experimental ones, groups, schedules and counts of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, nn
from mindspore.experimental import optim

import probe
from probe.common.dump.update_file import Update
from probe.common.numerics.sketch import sketch

SEED = 5
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Momentum": lambda given: nn.Momentum(given, 0.1, 0.9),
    "AdamWeightDecay": lambda given: nn.AdamWeightDecay(given, 0.01, weight_decay=0.1),
    "Adagrad": lambda given: nn.Adagrad(given),
    "experimental SGD": lambda given: optim.SGD(given, lr=0.1),
    "experimental AdamW": lambda given: optim.AdamW(given, lr=0.01),
}


def network() -> Any:
    draws = np.random.default_rng(SEED)
    layers = [
        nn.Dense(rows, columns, weight_init=ms.Tensor(draws.standard_normal((columns, rows)).astype(np.float32)))
        for rows, columns in ((6, 20), (20, 3))
    ]
    return nn.SequentialCell(layers[0], nn.Tanh(), layers[1])


def copies(model: Any) -> dict[str, Any]:
    return {name: each.asnumpy().astype(np.float64) for name, each in model.parameters_and_names()}


def recorded(debugger: Any, runs: Any, model: Any, optimizer: Any, step: int) -> tuple[Update, Any]:
    batch = ms.Tensor(np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6))
    differentiated = ms.value_and_grad(lambda x: mint.mean(mint.square(model(x))), None, optimizer.parameters)
    debugger.start(model)
    _, gradients = differentiated(batch)
    optimizer(gradients)
    debugger.stop()
    debugger.step()
    dump = probe.read(runs.path / f"step{step}")
    assert isinstance(dump, probe.Dump)
    (update,) = dump.updates
    return update, [each.asnumpy().astype(np.float64) for each in gradients]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_kind_of_optimizer(runs: Any, kind: str) -> None:
    model = network()
    optimizer, debugger = OPTIMIZERS[kind](model.trainable_params()), runs.new(level="L0")
    for step in range(2):
        before = copies(model)
        update, gradients = recorded(debugger, runs, model, optimizer, step)
        assert [each.name for each in update.parameters] == list(before)
        after = copies(model)
        for each, gradient in zip(update.parameters, gradients):
            change = after[each.name] - before[each.name]
            size = float(np.linalg.norm(after[each.name]) + np.linalg.norm(before[each.name]))
            assert each.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
            assert each.parameter_norm == pytest.approx(np.linalg.norm(after[each.name]), rel=1e-6)
            assert each.update is not None
            np.testing.assert_allclose(each.update.sums, sketch(change).sums, rtol=0, atol=3e-7 * size)
            assert each.state_step == (None if kind == "experimental SGD" else step + 1)


def test_groups_have_their_settings(runs: Any) -> None:
    model = network()
    given = model.trainable_params()
    groups = [{"params": given[:1], "lr": 0.1, "weight_decay": 0.2}, {"params": given[1:], "lr": 0.3}]
    optimizer = nn.Momentum(groups, 0.5, 0.9)
    update, _ = recorded(runs.new(level="L0"), runs, model, optimizer, 0)
    assert [(each["lr"], each["weight_decay"], each["parameters"]) for each in update.groups] == [
        (0.1, 0.2, 1), (0.3, 0.0, len(given) - 1),
    ]  # fmt: skip
    assert [each.group for each in update.parameters] == [0] + [1] * (len(given) - 1)


def test_learning_rate_of_a_schedule_is_that_of_the_step(runs: Any) -> None:
    model = network()
    optimizer, debugger = nn.Momentum(model.trainable_params(), [0.5, 0.25, 0.125], 0.9), runs.new(level="L0")
    rates = [recorded(debugger, runs, model, optimizer, step)[0].groups[0]["lr"] for step in range(3)]
    assert rates == [0.5, 0.25, 0.125]
