"""``make demo-compare``: the example finds the one thing that its second run does otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(least=1, each=False, group="demos")
def test_the_demo_names_the_changed_call(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "LICENSE", tmp_path)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "examples" / "demo_compare.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout[done.stdout.index("first divergence") :].splitlines()
    # Runs of one program may have other numbers of threads, seeds and versions.
    said = [line for line in said if not line.startswith("  outside of the model: ")]
    assert said[0] == "first divergence: blocks.1 (ChangedBlock), Functional.gelu.1.forward"
    assert said[1] == "  cause:  argument approximate = tanh in the target only"
    assert said[2].startswith("  effect: output 0 has a relative error of ")
    assert "demo_compare.py:" in said[3] and 'F.gelu(self.expand(x), approximate="tanh")' in said[3]
    assert "demo.py:" in said[4] and "F.gelu(self.expand(x))" in said[4]
