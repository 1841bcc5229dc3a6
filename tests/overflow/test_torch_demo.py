"""``make demo-overflow``: what the example plants is what is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(least=1, each=False, group="demos")
def test_the_demo_names_the_product_that_overflows(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "examples" / "demo_overflow.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "step 1, rank 0: loss " in done.stdout and "step 2, rank 0: loss nan" in done.stdout
    said = done.stdout[done.stdout.index("\nstep 1, rank 1: Torch") :].strip().splitlines()
    assert said[0].startswith("step 1, rank 1: Torch.matmul.0.forward (origin: ")
    assert any("demo_overflow.py" in line and "torch.matmul(half, half.t())" in line for line in said)
    assert any(line.endswith(".html") for line in said)
