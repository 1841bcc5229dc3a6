"""Moves of the reference of a call by its inputs: few draws miss nothing of what the inputs do together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from msprobe.pytorch import PrecisionDebugger
from probe.api.replaying import load
from probe.calls import evaluation
from probe.calls.cases import Selection
from probe.calls.evaluation import Call
from probe.calls.prepared import prepare
from probe.precheck.run_cases import opened

UNIT = 2.0**-20
Tensors = list[torch.Tensor]


def recorded_call(folder: Path, function: str, inputs: Tensors) -> Call:
    """The one call of a dump, with its inputs."""
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), task="tensor", level="L1")
    debugger.start()
    getattr(torch, function)(*inputs)
    debugger.stop()
    PrecisionDebugger.reset()
    (path,) = folder.glob("step0/*/dump.json")
    found = opened(str(path), Selection(), load)
    (case,) = found.cases
    return prepare(found.adapter.execution, found.dump, case, 1).call


def normal(count: int) -> Tensors:
    draws = torch.Generator().manual_seed(3)
    return [torch.randn(1000, generator=draws) for _ in range(count)]


def moved(call: Call) -> np.ndarray:
    results = call.moved(UNIT)
    assert results is not None
    return np.asarray(results.outputs[0].value)


@pytest.mark.parametrize("as_part", [False, True])
def test_two_inputs_move_each_element_together_in_some_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_part: bool
) -> None:
    monkeypatch.setattr(evaluation, "_LARGE", 1)
    x, y = normal(2)
    call = recorded_call(tmp_path, "sub", [x, y])
    if as_part:
        call = call.part([x.numpy(), y.numpy()], [])
    expected = UNIT * (x.double().abs() + y.double().abs()).numpy()
    assert moved(call) == pytest.approx(expected, rel=1e-6)


def test_elements_of_one_input_are_moved_independently(tmp_path: Path) -> None:
    """A sum of many moves as its roundings do, which is less than all of them together."""
    call = recorded_call(tmp_path, "sum", [torch.ones(1024)])
    (most,) = moved(call).reshape(-1)
    assert UNIT * 1024**0.5 / 2 < most < UNIT * 1024 / 4


def test_the_gradient_of_a_number_moves_although_its_terms_cancel(tmp_path: Path) -> None:
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="tensor", level="L1")
    weight = torch.tensor(1.3, requires_grad=True)
    signs = torch.ones(256).index_fill(0, torch.arange(0, 256, 2), -1.0)
    debugger.start()
    (torch.full((256,), 7.0) * weight).backward(signs)
    debugger.stop()
    PrecisionDebugger.reset()
    (path,) = tmp_path.glob("step0/*/dump.json")
    found = opened(str(path), Selection(), load)
    results = prepare(found.adapter.execution, found.dump, found.cases[0], 1).call.moved(UNIT)
    assert results is not None
    (gradient,) = [each.value for each in results.gradients if isinstance(each.value, np.ndarray)]
    assert gradient.shape == () and gradient > UNIT * 7
