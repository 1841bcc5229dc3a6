"""Task ``overflow_check`` where a loss scaler is at work; over several ranks see `test_distributed.py`."""

from __future__ import annotations

from typing import Any

import dumped
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, amp, nn, ops


def train(debugger: Any, scaler: Any, scales: list[float]) -> None:
    model = nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 2))
    optimizer = nn.SGD(model.trainable_params(), learning_rate=1e-12)

    def loss_of(batch: Any) -> Any:
        result = model(batch)
        # A small loss with large gradients.
        return scaler.scale(((result - ops.stop_gradient(result)) * 1e10).sum())

    gradients_of = ms.value_and_grad(loss_of, None, optimizer.parameters)
    for scale in scales:
        scaler.scale_value.set_data(Tensor(scale, ms.float32))
        debugger.start(model)
        _, gradients = gradients_of(Tensor(np.ones((3, 4), np.float32)))
        debugger.stop()
        is_finite = amp.all_finite(gradients)
        if is_finite:
            optimizer(scaler.unscale(gradients))
        scaler.adjust(is_finite)
        debugger.step()


def test_steps_that_a_scaler_skips_are_counted_and_not_written(runs: Any, capsys: Any) -> None:
    scaler = amp.DynamicLossScaler(scale_value=1.0, scale_factor=2, scale_window=100)
    adjust = amp.DynamicLossScaler.adjust
    code = adjust.__code__
    train(runs.new(task="overflow_check", level="mix"), scaler, [1.0, 1e30, 1.0, 1e30])
    runs.end()
    assert not runs.path.exists()
    assert "skipped 2 steps" in capsys.readouterr().err
    assert amp.DynamicLossScaler.adjust is adjust and adjust.__code__ is code


def test_skips_that_do_not_end_are_written(runs: Any) -> None:
    scaler = amp.DynamicLossScaler(scale_value=1.0, scale_factor=2, scale_window=100)
    train(runs.new(task="overflow_check", level="mix", max_skips=2), scaler, [1.0, 1e30, 1e30])
    assert dumped.folders(runs.path) == ["step2/procN"]


def test_the_cell_that_other_cells_ask_is_seen(runs: Any, capsys: Any) -> None:
    """By `nn.TrainOneStepWithLossScaleCell`, which does not run on the CPU."""
    manager = nn.DynamicLossScaleUpdateCell(loss_scale_value=1024, scale_factor=2, scale_window=100)
    scale = Parameter(Tensor(1024.0, ms.float32), name="scale")
    model = nn.SequentialCell(nn.Dense(4, 2))
    debugger = runs.new(task="overflow_check", level="mix")
    for overflow in (False, True, True):
        debugger.start(model)
        model(Tensor(np.ones((3, 4), np.float32)))
        debugger.stop()
        manager(scale, Tensor(overflow))
        debugger.step()
    runs.end()
    assert float(scale) == 256
    assert "skipped 2 steps" in capsys.readouterr().err
