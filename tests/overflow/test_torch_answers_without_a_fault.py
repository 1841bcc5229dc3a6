"""The answer without a fault: infinities that were meant are counted, and steps that were not collected are told of."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from msprobe.pytorch import PrecisionDebugger
from probe.overflow.find_overflow import find_overflow
from probe.overflow.overflow_report import lines


def answer(folder: Path, steps: list[int]) -> list[str]:
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), step=steps, level="L1")
    for _ in range(2):
        debugger.start()
        scores = torch.randn(4, 4).masked_fill(torch.eye(4, dtype=torch.bool), -math.inf)
        torch.softmax(scores, -1).sum()
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()
    return list(lines(find_overflow(str(folder))))


@pytest.mark.parametrize("steps", [[], [0]])
def test_masks_are_counted_and_missing_steps_told(tmp_path: Path, steps: list[int]) -> None:
    first, *more = answer(tmp_path / "run", steps)
    outputs = "1 output has" if steps else "2 outputs have"
    assert f"no fault: {outputs} -inf, meant as masks; all other values are finite in" in first
    assert any("Only step 0 was collected" in line for line in more) == bool(steps)
