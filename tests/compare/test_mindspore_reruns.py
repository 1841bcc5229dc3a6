"""`compare --rerun` on steps of MindSpore."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import probe
from msprobe.mindspore import PrecisionDebugger


class Network(nn.Cell):  # type: ignore[misc]
    """A primitive, and functions; one number of each can be another one."""

    def __init__(self, scale: float, alpha: float) -> None:
        super().__init__()
        weight = np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32)
        self.weight = ms.Parameter(Tensor(weight * np.float32(scale)))
        self.product = ops.MatMul(transpose_b=True)
        self.alpha = alpha

    def construct(self, x: Tensor) -> Tensor:
        return ops.leaky_relu(self.product(x, self.weight), self.alpha).sum()


def step(folder: Path, scale: float = 1.0, alpha: float = 0.1) -> Path:
    """One step of the network; return the folder of its dump."""
    # One of another test may be there.
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), task="tensor", level="L1")
    network = Network(scale, alpha)
    debugger.start(network)
    inputs = Tensor(np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32))
    ms.value_and_grad(network, 0, network.trainable_params())(inputs)
    debugger.stop()
    debugger.step()
    return folder


@pytest.mark.parametrize(("wrong", "answer"), [({"scale": 1.5}, "inputs"), ({"alpha": 0.5}, "call")])
def test_inputs_and_call_are_told_apart(tmp_path: Path, wrong: dict[str, float], answer: str) -> None:
    found = probe.verdict(step(tmp_path / "target", **wrong), step(tmp_path / "golden"), rerun=True).divergence
    assert found is not None
    assert found.first.rerun is not None
    assert found.first.rerun.answer == answer, found.first
