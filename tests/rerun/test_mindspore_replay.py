"""`msprobe replay` on a step of MindSpore, and scripts in an interpreter that has MindSpore alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import mindspore.mint.nn.functional as functional
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

import probe
from msprobe.mindspore import PrecisionDebugger
from probe.common.errors import MsprobeException

ALONE = """
import contextlib, io, json, runpy, sys
sys.modules["probe"] = sys.modules["msprobe"] = None
found = {}
for path in sys.argv[1:]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        runpy.run_path(path)
    found[path] = text.getvalue()
print(json.dumps(found))
"""


class Network(nn.Cell):  # type: ignore[misc]
    """A primitive, and functions of ops, mint, mint.nn.functional and Tensor, in two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(Tensor(np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32)))
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor) -> Tensor:
        x = functional.silu(self.product(x, self.weight))
        first, second = ops.split(ops.softmax(x, -1).mul(2.0), 4, 1)
        values, _ = ops.topk(ops.relu(first) + ops.sigmoid(second), 2)
        half = first.astype(ms.float16)
        return mint.matmul(half, half.T).astype(ms.float32).sum() + values.sum()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One step of the network; return the path of its dump.json."""
    folder = tmp_path_factory.mktemp("step")
    # One of another test may be there.
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), task="tensor", level="L1")
    network = Network()
    debugger.start(network)
    inputs = Tensor(np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32))
    ms.value_and_grad(network, 0, network.trainable_params())(inputs)
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    (path,) = folder.glob("step0/*/dump.json")
    return str(path)


def test_every_call_repeats_and_its_script_runs_alone(recorded: str, tmp_path: Path) -> None:
    found = {}
    for record in probe.read(recorded):
        if record.name.endswith(".forward") and ".to." not in record.name:
            name = record.name[: -len(".forward")]
            script = str(tmp_path / f"{name}.py")
            found[script] = probe.replay(recorded, name, emit=script)
    assert len(found) > 10
    for each in found.values():
        assert not each.is_wrong, str(each)
        differences = [one.difference for one in each.replayed.results if one.difference is not None]
        assert differences
        assert all(one.is_same for one in differences), str(each)
    ran = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, *found], capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    texts = json.loads(ran.stdout.strip().split("\n")[-1])
    for script, each in found.items():
        lines = [line for line in texts[script].split("\n") if " on CPU, exactly " in line]
        assert len(lines) == len(each.replayed.results), script
    assert "mindspore.ops.MatMul(transpose_b=True)(x0, x1)" in "".join(map(_text, found))
    assert "output = mindspore.mint.nn.functional.silu(x0)" in "".join(map(_text, found))
    assert "output = x0.__add__(x1)" in "".join(map(_text, found))


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def test_a_wrong_kernel_is_found_and_made_small(recorded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = functional.silu
    with monkeypatch.context() as patch:
        patch.setattr(functional, "silu", lambda x: right(x) if x.dtype == ms.float64 else right(x) * 1.01)
        found = probe.replay(recorded, "MintFunctional.silu.0.forward", minimise=True)
    assert (found.replayed.now, found.replayed.recorded) == ("error", "pass")
    assert found.smaller is not None
    assert found.smaller.after == [(1, 1)]


def test_an_unknown_call_is_refused_with_the_nearest(recorded: str) -> None:
    with pytest.raises(MsprobeException, match=r"nearest names: MintFunctional\.silu\.0\.forward"):
        probe.replay(recorded, "MintFunctional.sily.0")
