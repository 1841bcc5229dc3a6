"""Settings of calls and modules: what is one setting in two forms, and what is another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger
from probe.common.dump.reading.dump import read
from probe.common.environment.modules import Buffer, ModuleSettings
from probe.compare.comparison import compared
from probe.compare.options import Options
from probe.compare.two_dumps import Comparison
from probe.compare.verdict.settings import are_one, differences_of, of_attributes, rotary_base
from probe.compare.verdict.two_runs import TwoRuns

Compute = Callable[[Any, torch.Tensor], Any]


class Scaled(nn.Module):
    def forward(self, x: Any, scale: float = 1.0, adds: bool = False) -> Any:
        return x.mul(scale) + 1 if adds else x.mul(scale)


class Net(nn.Module):
    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.scaled, self.linear, self._compute = Scaled(), nn.Linear(8, 8), compute

    def forward(self, x: Any) -> Any:
        return self._compute(self, x)


@pytest.fixture
def differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All settings that differ between two computations of a network, in words."""

    def found(target: Compute, golden: Compute) -> list[str]:
        dumps = []
        for name, compute in (("target", target), ("golden", golden)):
            torch.manual_seed(0)
            model = Net(compute)
            monkeypatch.setattr(PrecisionDebugger, "_instance", None)
            debugger = PrecisionDebugger(task="statistics", level="mix", dump_path=str(tmp_path / name))
            debugger.start(model)
            model(torch.linspace(-2, 3, 32).reshape(4, 8))
            debugger.stop()
            debugger.step()
            (dump,) = (tmp_path / name).glob("step0/*/dump.json")
            dumps.append(read(dump))
        runs = compared(Comparison(*dumps, Options())).seen.runs
        assert runs is not None
        return [each.sentence.shown for call in runs.calls for each in differences_of(runs, call)]

    return found


ONE: list[tuple[Compute, Compute]] = [
    (lambda self, x: F.gelu(x, approximate="none"), lambda self, x: F.gelu(x)),
    (lambda self, x: F.softmax(x, -1), lambda self, x: F.softmax(x, dim=1)),
    (lambda self, x: x + 1, lambda self, x: x + 1.0),
    (lambda self, x: torch.add(x, 2, alpha=1), lambda self, x: torch.add(x, 2)),
    (lambda self, x: F.linear(x, self.linear.weight, None), lambda self, x: F.linear(x, self.linear.weight)),
    (lambda self, x: self.scaled(x, 0.5), lambda self, x: self.scaled(x, scale=0.5)),
    (lambda self, x: torch.transpose(x, -2, -1), lambda self, x: torch.transpose(x, 0, 1)),
    (lambda self, x: torch.zeros(2, device="cpu") + x[:2, :2], lambda self, x: torch.zeros(2) + x[:2, :2]),
    (lambda self, x: x.view(8, 4), lambda self, x: x.view((8, 4))),
]


@pytest.mark.parametrize("pair", ONE)
def test_one_setting_in_two_forms_is_no_difference(differences: Any, pair: tuple[Compute, Compute]) -> None:
    assert differences(*pair) == []


OTHER: list[tuple[Compute, Compute, str]] = [
    (lambda self, x: F.gelu(x, approximate="tanh"), lambda self, x: F.gelu(x),
     "argument approximate = tanh in the target only"),
    (lambda self, x: F.softmax(x, 0), lambda self, x: F.softmax(x, dim=-1), "argument dim = 0 (golden: -1)"),
    (lambda self, x: F.layer_norm(x, (8,), eps=1e-3), lambda self, x: F.layer_norm(x, (8,)),
     "argument eps = 0.001 in the target only"),
    (lambda self, x: F.leaky_relu(x, 0.2), lambda self, x: F.leaky_relu(x, negative_slope=0.3),
     "argument negative_slope = 0.2 (golden: 0.3)"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "golden", "expected"), OTHER)
def test_another_argument_is_said_by_its_name(differences: Any, target: Any, golden: Any, expected: str) -> None:
    assert differences(target, golden) == [expected]


def test_numbers_that_were_computed_may_be_rounded() -> None:
    assert are_one(0.35355339059327373, 0.353515625, 4 * 2.0**-8)
    assert not are_one(1e-5, 1.001e-5, 4 * 2.0**-8)  # Nobody computes an epsilon.
    assert are_one(1, 1.0) and not are_one(1, True) and not are_one(1, 2)
    assert are_one("cpu", "cuda:0") and are_one([0, 0], "valid") and not are_one([1, 1], "valid")


def torch_and_mindspore(target: dict[str, Any], golden: dict[str, Any], kind: str = "Layer") -> list[str]:
    runs: Any = TwoRuns((), None, None, None, ({}, {}), ({}, {}), True, False)  # type: ignore[arg-type]
    sides = (
        ModuleSettings(f"{module}.{kind}", True, True, values)
        for module, values in (("mindspore.nn", target), ("torch.nn", golden))
    )
    return [each.sentence.shown for each in of_attributes(*sides, "Cell.layer", runs)]


SAME = [
    ({"epsilon": 1e-5}, {"eps": 1e-5}),
    ({"keep_prob": 0.9, "p": None}, {"p": 0.1}),
    ({"keep_prob": 0.5, "p": 0.1}, {"p": 0.1}),
    ({"approximate": True}, {"approximate": "tanh"}),
    ({"pad_mode": "pad", "padding": 1, "kernel_size": [3, 3]}, {"padding": (1, 1), "kernel_size": (3, 3)}),
    ({"pad_mode": "valid", "padding": 0}, {"padding": 0}),
    ({"momentum": 0.09999999999999998, "num_features": 8}, {"momentum": 0.1}),
    ({"axis": -1}, {"dim": -1}),
]


@pytest.mark.parametrize(("target", "golden"), SAME)
def test_conventions_of_frameworks_are_no_difference(target: dict[str, Any], golden: dict[str, Any]) -> None:
    assert torch_and_mindspore(target, golden) == []


DIFFERENT = [
    ({"epsilon": 1e-7}, {"eps": 1e-5}, "argument eps = 1e-07 (golden: 1e-05)"),
    ({"keep_prob": 0.1, "p": None}, {"p": 0.1}, "argument p = 0.9 (golden: 0.1)"),
    ({"approximate": "none"}, {"approximate": "tanh"}, "argument approximate = none (golden: tanh)"),
    ({"momentum": 0.9}, {"momentum": 0.1}, "argument momentum = 0.9 (golden: 0.1)"),
    ({"pad_mode": "valid", "padding": 0}, {"padding": (1, 1)}, "argument padding = 0 (golden: 1)"),
]


@pytest.mark.parametrize(("target", "golden", "expected"), DIFFERENT)
def test_settings_of_layers_are_said_as_pytorch_does(target: Any, golden: Any, expected: str) -> None:
    assert torch_and_mindspore(target, golden) == [expected]


def test_base_of_a_rotation_is_read_from_its_frequencies() -> None:
    frequencies = 1.0 / 500.0 ** (torch.arange(0, 16, 2) / 16)
    statistics = frequencies.max().item(), frequencies.min().item(), frequencies.mean().item()
    found = rotary_base(Buffer("torch.float32", (8,), statistics))
    assert found is not None and found[0] == pytest.approx(500.0, rel=found[1])
    assert rotary_base(Buffer("torch.float32", (8,), (1.0, 0.1, 0.9))) is None
