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
