"""``make demo-experts``: choices that rounding turns are counted, and the gradient that turns away is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(least=1, each=False, group="demos")
def test_the_demo_names_the_turn_and_counts_the_choices(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "examples" / "demo_experts.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "no divergence: all differences are within rounding error" in done.stdout
    assert "of 512 choices differ" in done.stdout and "their inputs explain them" in done.stdout
    assert "first turn: step 12, rank 0: gradient of 2.router.gate.weight: cosine" in done.stdout
    assert "the norms agree" in done.stdout
