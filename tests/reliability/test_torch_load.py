"""Load, in a bounded version; `python tests/reliability/load.py` has the long one."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import debugger_load as load
import pytest

from msprobe.pytorch import PrecisionDebugger


@pytest.fixture(autouse=True)
def no_debugger_is_left() -> Iterator[None]:
    yield
    PrecisionDebugger._instance = None


def test_many_records_take_bounded_memory_and_a_steady_time() -> None:
    found = load.records(8_000, parts=4)
    assert found["records"] == 8_000
    assert found["us per record, last tenth"] < 2 * found["us per record, first tenth"] + 50
    assert found["bytes of memory per record while collecting"] < 600
    assert found["bytes of memory per record, on top, while the files are made"] < 2000


@pytest.mark.parametrize("checksum", [False, True])
def test_a_large_tensor_is_described_without_a_copy_of_it(checksum: bool) -> None:
    found = load.tensor(256, checksum)
    elements = 256 * 2**18
    entry = found["entry"]
    assert (entry["shape"], entry["Max"], entry["Min"]) == ([elements], 3.0, 1.0)
    assert entry["Mean"] == pytest.approx(1 + 2 / elements, rel=1e-6)
    assert entry["Norm"] == pytest.approx(math.sqrt(elements + 8), rel=1e-6)
    assert found["MiB on top of the tensor"] < 64


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize(("level", "task"), [("L0", "statistics"), ("mix", "tensor")])
def test_a_model_400_modules_deep_has_every_record(level: str, task: str) -> None:
    found = load.deep(400, level, task)
    # The model itself has no record.
    assert (found["depth of the tree"], found["errors"]) == (400, False)
    assert found["forward"] >= 400 and found["backward"] >= 400
    assert (found["tensor files"] > 1600) == (task == "tensor")


def deepest_alone() -> int:
    """How many modules may be nested under the limit of frames as it is, without the tool."""
    import torch

    def runs(modules: int) -> bool:
        try:
            load.nested(modules)(torch.ones(1, 2))
        except RecursionError:
            return False
        return True

    low, high = 1, 2000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_model_that_runs_alone_within_the_limit_of_frames_runs_with_the_tool(level: str) -> None:
    limit, modules = sys.getrecursionlimit(), deepest_alone()
    # The frames of `deep` itself are ours too.
    found = load.deep(modules - 2, level, limit=None)
    assert found["errors"] is False and found["forward"] >= (1 if level == "L1" else modules - 2)
    assert sys.getrecursionlimit() == limit


def test_steps_that_are_not_collected_leave_nothing() -> None:
    found = load.steps(300)
    assert [name for name in found["folders"] if not name.startswith("environment_")] == ["step1"]
    assert found["us per step, last tenth"] < 3 * found["us per step, second tenth"] + 200
    assert found["MiB more after the last tenth than after the second"] < 8
