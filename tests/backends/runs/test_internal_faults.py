"""Every function of the tool fails in turn: `internal_faults.py`, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

FAULTS = Path(__file__).with_name("internal_faults.py")


def test_no_failure_inside_the_tool_reaches_the_training(backend: Any) -> None:
    # What a fault leaves behind is not for other tests, nor what they have left for it.
    command = [sys.executable, "-m", "pytest", str(FAULTS), "--backend", backend.name, "-q"]
    done = subprocess.run(command, cwd=FAULTS.parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
