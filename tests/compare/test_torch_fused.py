"""A small share of benchmarks/verdicts/fused: a right port is silent, and a fault is named where it is."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from sections import load

FAULTS = ("right", "keys and values swapped", "epsilon", "missing residual")


@pytest.fixture(scope="module")
def fused() -> ModuleType:
    return load("fused")


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_right_port_is_silent_and_faults_are_named(fused: ModuleType, tmp_path: Path, level: str) -> None:
    fused.make(tmp_path, ["qwen2"], [level], FAULTS)
    rows = list(fused.judge(tmp_path, ["qwen2"], [level], FAULTS))
    assert len(rows) == len(FAULTS) and all(row.right for row in rows), rows


def test_in_a_short_type_the_end_of_the_pass_shows_a_fault(fused: ModuleType, tmp_path: Path) -> None:
    """No call of the port differs by more than rounding makes by itself; what the pass returns does."""
    faults = ("right", "gate and up swapped", "head order")
    fused.make(tmp_path, ["llama"], ["mix"], faults, "bfloat16")
    right, *wrong = fused.judge(tmp_path, ["llama"], ["mix"], faults)
    assert right.right, right
    assert all(row.right and "values stay apart up to what the pass returns" in row.said for row in wrong), wrong
