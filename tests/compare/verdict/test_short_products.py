"""Matrix products of float32 that one run computes in TF32, which its environment tells and no dtype does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, W, X, call, named, tensor, write
from numpy.typing import NDArray

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult

LAYERS = 6


def tf32(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """The numbers that TF32 has: eleven bits of significand."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000).astype(np.uint32).view(np.float32)


def run(rounded: bool, fault_at: int = -1) -> Run:
    kept = tf32 if rounded else np.asarray
    found: Run = {}
    x = X
    for layer in range(LAYERS):
        product = (kept(x) @ kept(W)).astype(np.float32)
        found[f"Functional.linear.{layer}.forward"] = call([tensor(x), tensor(W)], tensor(product))
        y = np.maximum(product, 0) if layer == fault_at else np.tanh(product)
        found[f"Torch.tanh.{layer}.forward"] = call([tensor(product)], tensor(y))
        x = x + y
        found[f"Tensor.__add__.{layer}.forward"] = call([tensor(x - y), tensor(y)], tensor(x))
    return found


def result(folder: Path, target: Run, **switches: Any) -> ComparisonResult:
    for side, data, of_side in (("target", target, switches), ("golden", run(False), {})):
        write(folder / side / "step0" / "rank0", data)
        content = {"format": 1, "framework": "pytorch", "switches": {"matmul_tf32": False, **of_side}}
        (folder / side / "environment_rank0.json").write_text(json.dumps(content))
    target, golden = (read(folder / side / "step0" / "rank0") for side in ("target", "golden"))
    return compare_dumps(target, golden)


def test_a_right_run_in_tf32_is_silent_and_without_the_switch_it_is_not(tmp_path: Path) -> None:
    found = result(tmp_path / "on", run(True), matmul_tf32=True)
    assert found.divergence is None and found.undecided == []
    assert named(result(tmp_path / "off", run(True)).divergence) == "Functional.linear.0.forward"


@pytest.mark.parametrize("fault_at", [0, 4])
def test_a_fault_in_tf32_is_named(tmp_path: Path, fault_at: int) -> None:
    found = result(tmp_path, run(True, fault_at), matmul_tf32=True)
    assert named(found.divergence) == f"Torch.tanh.{fault_at}.forward"
