"""`msprobe acc_check` on a step of MindSpore: functions of all families and primitives, forward and backward."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.mint.nn.functional as functional
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from msprobe.mindspore import PrecisionDebugger
from probe.api.cli import main
from probe.api.replaying import acc_check
from probe.precheck.report import Report


class Network(nn.Cell):  # type: ignore[misc]
    """Layers, which hold primitives, and functions of ops, mint, mint.nn.functional and Tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2, 2)
        self.dense = nn.Dense(64, 16)
        self.layer_norm = nn.LayerNorm((16,))
        self.embedding = nn.Embedding(10, 16)
        self.dropout = nn.Dropout(p=0.3)
        self.softmax = nn.Softmax()
        self.weight = ms.Parameter(Tensor(np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32) / 4))

    def construct(self, image: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.pool(functional.relu(self.norm(self.conv(image))))
        x = self.layer_norm(self.dense(ops.flatten(x)))
        x = x + mint.mean(self.embedding(ids), 1) * 0.5
        x = self.dropout(ops.gelu(ops.tanh(ops.matmul(x, self.weight))))
        x = mint.cat([self.softmax(x), ops.softmax(mint.add(x, 1.0), axis=-1)], 1)
        first, second = ops.split(x, 16, 1)
        x = ops.bmm(first.reshape(-1, 4, 4), second.reshape(-1, 4, 4)).transpose(0, 2, 1).sum(1)
        x = ops.sigmoid(x) + ops.exp(x * 0.1) - ops.log(ops.abs(x) + 1) + mint.sqrt(x * x + 1)
        values, _ = ops.topk(first, 4)
        x = ops.where(x > 1, x, x * 0.5) + functional.softmax(x, dim=-1) + values
        return ops.cross_entropy(x, labels)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One step of the network; return the path of its dump.json."""
    folder = tmp_path_factory.mktemp("step")
    config = {"task": "tensor", "level": "L1", "risk_level": "ALL", "dump_path": str(folder / "dump"), "tensor": {}}
    (folder / "config.json").write_text(json.dumps(config))
    ms.set_seed(3)
    draws = np.random.default_rng(3)
    network = Network().set_train()
    inputs = [
        Tensor(draws.normal(size=(4, 3, 8, 8)).astype(np.float32)),
        Tensor(draws.integers(0, 10, (4, 5)).astype(np.int32)),
        Tensor(np.arange(4, dtype=np.int32)),
    ]
    # One of another test may be there.
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(str(folder / "config.json"))
    debugger.start(network)
    ms.value_and_grad(network, None, network.trainable_params())(*inputs)
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    (found,) = folder.rglob("dump.json")
    return str(found)


def check(path: str, folder: Path) -> Report:
    return acc_check(path, output=str(folder))


@contextlib.contextmanager
def planted(owner: Any, name: str, fault: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """`fault` of the result of a function, but not in float64."""
    right = getattr(owner, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        return result if result.dtype == ms.float64 else fault(result)

    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)


@pytest.mark.sampled(least=2, each=False, group="kernels")
def test_correct_kernels_pass_forward_and_backward(recorded: str, tmp_path: Path) -> None:
    report = check(recorded, tmp_path)
    assert {result.not_run for result in report.results if result.not_run} == {"to computes nothing"}
    assert {result.name: result.status for result in report.failed} == {}
    run = {result.base for result in report.results if result.rows}
    families = {"Primitive.conv2d.Conv2D", "Primitive.bn_train.BatchNorm", "Primitive.dropout.Dropout"}
    assert families | {"Functional.bmm", "Mint.cat", "MintFunctional.relu", "Tensor.reshape"} <= run
    backward = {result.base for result in report.results for row in result.rows if row.of}
    assert {"Functional.bmm", "Functional.matmul", "Mint.cat", "MintFunctional.softmax", "Tensor.__mul__"} <= backward


@pytest.mark.sampled(least=2, each=False, group="kernels")
def test_a_wrong_kernel_is_found_and_nothing_else(recorded: str, tmp_path: Path) -> None:
    def scaled(result: Tensor) -> Tensor:
        return ops.mul(result, 1.002)

    with planted(ops, "gelu", scaled), planted(functional, "softmax", scaled):
        report = check(recorded, tmp_path)
    assert {result.base for result in report.failed} == {"Functional.gelu", "MintFunctional.softmax"}


ALONE = """
import runpy, sys
sys.modules["probe"] = sys.modules["msprobe"] = None
for path in sys.argv[1:]:
    print("--", path)
    runpy.run_path(path)
"""


@pytest.mark.sampled(least=2, each=False, group="kernels")
def test_scripts_of_single_calls_run_without_this_package(recorded: str, tmp_path: Path) -> None:
    names = ["Functional.bmm.0", "Functional.topk.0", "Mint.cat.0", "Tensor.sum.0", "Primitive.matmul.MatMul.0"]
    paths = [str(tmp_path / f"{name}.py") for name in names]
    for name, path in zip(names, paths):
        assert main(["replay", recorded, name, "--emit", path]) == 0
    # Not -I, which would leave out GLOG_v.
    command = [sys.executable, "-c", ALONE, *paths]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr[-3000:]
    printed = ran.stdout.split("-- ")[1:]
    assert len(printed) == len(names)
    for text in printed:
        assert "forward.output.0 at [" in text and "recorded" in text
    assert "error 0 ULP of Float32" in printed[1] and "error 0 ULP of Float32" in printed[2]
    assert "gradient of x0 at [" in printed[0] and "gradient of x1 at [" in printed[0]


def test_what_has_no_float64_kernel_has_no_script(
    recorded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", recorded, "Primitive.conv2d.Conv2D.0", "--emit", str(tmp_path / "conv.py")]) == 2
    assert "no float64 kernel" in capsys.readouterr().err
