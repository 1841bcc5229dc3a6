"""Functions that share their name in records: `acc_check`, `replay` and scripts run each as itself."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from msprobe.pytorch import PrecisionDebugger
from probe.api.replaying import acc_check
from probe.backends.torch.hooks import api_hooks
from probe.common.errors import MsprobeException

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")
MATRIX = torch.tensor([[4.0, 1, -2, 0.5], [1, 3, 0.25, -1], [-2, 0.25, 5, 1], [0.5, -1, 1, 6]])
TALL, ROWS = MATRIX[:, :2], MATRIX[:, :3]
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cross": (ROWS, ROWS.roll(1, 0)),
    "diagonal": (torch.stack([MATRIX, -MATRIX]),),
    "matmul": (MATRIX, TALL),
    "matrix_exp": (MATRIX / 8,),
    "matrix_power": (MATRIX, 3),
    "norm": (MATRIX, float("inf")),
    "qr": (TALL,),
    "svd": (TALL,),
    "vander": (MATRIX[0],),
}
"""Positional arguments alone, which both functions of a name take."""
NAMES = sorted(each.name.base for functions in api_hooks.watched().values() for each in functions if each.name.function)


def call(function: Callable[..., Any], first: torch.Tensor, *others: Any) -> None:
    """Call a function and its backward, but for `torch.vander`, which writes to what that needs."""
    differentiated = function is not torch.vander
    returned = function(first.clone().requires_grad_(differentiated), *others)
    if differentiated:
        sum(each.square().sum() for each in (returned if isinstance(returned, tuple) else (returned,))).backward()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the dump of a step that calls both functions of each name, and three which no other one shares."""
    folder = tmp_path_factory.mktemp("namesakes")
    config = {"task": "tensor", "level": "L1", "risk_level": "ALL", "dump_path": str(folder), "tensor": {}}
    (folder / "config.json").write_text(json.dumps(config))
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(str(folder / "config.json"))
    debugger.start()
    with warnings.catch_warnings():
        # Some of these functions are deprecated for the sake of their namesakes.
        warnings.simplefilter("ignore")
        for base in NAMES:
            for owner in (torch, torch.linalg):
                call(getattr(owner, base.partition(".")[2]), *ARGUMENTS.get(base.partition(".")[2], (MATRIX,)))
    torch.linalg.lstsq(TALL, MATRIX)
    torch.ops.aten.div.Scalar(MATRIX, 3.0)
    torch.ops.aten.div(MATRIX, 3.0)
    debugger.stop()
    PrecisionDebugger.reset()
    (path,) = folder.glob("step0/*/dump.json")
    return str(path)


def test_a_record_has_the_full_name_where_its_own_is_that_of_another_function(dump: str) -> None:
    data = json.loads(Path(dump).read_text())["data"]
    for base in NAMES:
        assert "function" not in data[f"{base}.0.forward"]
        assert data[f"{base}.1.forward"]["function"] == f"torch.linalg.{base.partition('.')[2]}"
    assert "function" not in data["Torch.lstsq.0.forward"]
    assert data["Aten.div.0.forward"]["function"] == "torch.ops.aten.div.Scalar"
    assert "function" not in data["Aten.div.1.forward"]


def test_each_call_is_checked_by_its_own_function(dump: str) -> None:
    report = acc_check(dump)
    results = {result.name: result for result in report.results}
    assert report.failed == []
    # `lstsq` raises in float64 for what it writes; it is run, as the others are.
    assert {name: result.not_run for name, result in results.items() if result.not_run} == {}
    assert {f"{base}.{number}" for base in NAMES for number in (0, 1)} <= set(results)


def test_each_call_has_a_script_that_runs_its_own_function(dump: str, tmp_path: Path) -> None:
    for base in NAMES:
        probe.replay(dump, f"{base}.1", emit=tmp_path / f"{base}.py")
    text = (tmp_path / "Torch.svd.py").read_text()
    assert "output = torch.linalg.svd(x0)" in text
    run_all = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path)"
    paths = [str(tmp_path / f"{base}.py") for base in NAMES]
    ran = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", "-c", run_all, *paths], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize("function", [7, "os.system", "torch.linalg.svd.__call__"])
def test_a_full_name_that_is_none_of_the_lists_is_not_run(dump: str, tmp_path: Path, function: Any) -> None:
    content = json.loads(Path(dump).read_text())
    content["data"] = {"Torch.svd.1.forward": {**content["data"]["Torch.svd.1.forward"], "function": function}}
    hostile = tmp_path / "dump.json"
    hostile.write_text(json.dumps(content))
    with pytest.raises(MsprobeException, match="function"):
        probe.replay(str(hostile), "Torch.svd.1")
