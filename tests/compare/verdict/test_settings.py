"""Settings of modules in two frameworks: what is one setting in two forms, and what is another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.common.environment.modules import Buffer, ModuleSettings
from probe.compare.verdict.settings import are_one, of_attributes, rotary_base
from probe.compare.verdict.two_runs import TwoRuns


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
    frequencies = 1.0 / 500.0 ** (np.arange(0, 16, 2) / 16)
    statistics = float(frequencies.max()), float(frequencies.min()), float(frequencies.mean())
    found = rotary_base(Buffer("torch.float32", (8,), statistics))
    assert found is not None and found[0] == pytest.approx(500.0, rel=found[1])
    assert rotary_base(Buffer("torch.float32", (8,), (1.0, 0.1, 0.9))) is None
