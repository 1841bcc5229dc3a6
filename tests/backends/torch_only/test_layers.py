"""Models that are one layer of torch, whatever torch made it of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

BATCH = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


def attend(model: Any) -> Any:
    x = BATCH.clone().requires_grad_()
    return model(x, x, x)[0]


def call(model: Any) -> Any:
    return model(BATCH.clone().requires_grad_())


def first(model: Any) -> Any:
    return call(model)[0]


@pytest.mark.parametrize(
    ("make", "compute", "parameters"),
    [
        (lambda: nn.MultiheadAttention(4, 2, batch_first=True), attend, {"in_proj_weight", "in_proj_bias"}),
        (lambda: nn.LSTM(4, 3), first, {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"}),
        (lambda: nn.Bilinear(4, 4, 2), lambda model: model(input1=BATCH, input2=BATCH), {"weight", "bias"}),
        (lambda: nn.PReLU(), call, {"weight"}),
        (lambda: weight_norm(nn.Linear(4, 2)), call, {"bias"}),
        (lambda: spectral_norm(nn.Linear(4, 2)), call, {"bias"}),
    ],
    ids=["attention", "lstm", "bilinear", "prelu", "weight_norm", "spectral_norm"],
)
def test_a_layer_of_torch_is_recorded_with_its_parameters(
    runs: Any, make: Callable[[], Any], compute: Callable[[Any], Any], parameters: set[str]
) -> None:
    debugger, model = runs.new(level="L0"), make()
    debugger.start(model)
    compute(model).sum().backward()
    debugger.stop()
    base, data = f"Module.{type(model).__name__}", runs.read().data
    assert list(data[f"{base}.forward.0"]["parameters"]) == [name for name, _ in model.named_parameters(recurse=False)]
    assert set(data[f"{base}.parameters_grad.0"]) == parameters
    assert f"{base}.backward.0" in data


def test_a_layer_that_is_compiled_in_place_is_one_record(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    debugger, model = runs.new(level="L0"), nn.Linear(4, 2)
    model.compile(backend="eager")
    debugger.start(model)
    call(model).sum().backward()
    debugger.stop()
    assert {"Module.Linear.forward.0", "Module.Linear.parameters_grad.0"} <= set(runs.read().names)
    assert "its modules have no records" not in capsys.readouterr().err
