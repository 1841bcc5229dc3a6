"""A fourth backend, `toy_adapter`, which has no optional group: with the core of the protocol all of this works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests/backends/support")])
CONTRACT = ("calls/test_names.py", "calls/test_gradients.py")
"""A part of the core of the contract; ``pytest tests/backends --backend toy`` is all of it."""
PROGRAM = """
import sys
from backend_toy import Backend, PrecisionDebugger
from programs import batch, block_network

backend = Backend()
assert backend.adapter is not None
for folder, factor in (("golden", 1), ("same", 1), ("other", 1.5)):
    model = block_network(backend)
    backend.write(model.head.weight, model.head.weight.data * factor)
    debugger = PrecisionDebugger(dump_path=folder, level="mix", task="statistics")
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    debugger.step()
    debugger.reset()
"""
REFUSED = """
from backend_toy import Backend, PrecisionDebugger

backend = Backend()
assert backend.adapter is not None
PrecisionDebugger(dump_path="refused", task="free_benchmark")
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": PATHS}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_core_of_the_contract_needs_no_optional_group(tmp_path: Path) -> None:
    files = [str(ROOT / "tests/backends" / file) for file in CONTRACT]
    done = run(ROOT, "-m", "pytest", "-q", "--backend", "toy", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def compared(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    paths = ("-tp", target, "-gp", "golden", "-o", f"of_{target}")
    return run(folder, "-m", "probe", "compare", *paths, "--fail-on", "divergence")


def test_its_dumps_are_compared(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    same, other = compared(tmp_path, "same"), compared(tmp_path, "other")
    assert (same.returncode, other.returncode) == (0, 1), same.stdout + same.stderr + other.stdout + other.stderr
    assert "no divergence" in same.stdout
    assert "first divergence" in other.stdout and "head" in other.stdout
    (dump,) = tmp_path.glob("golden/step0/*/dump.json")
    assert "Module.body.fc.Linear.backward.0" in json.loads(dump.read_text(encoding="utf-8"))["data"]


def test_a_task_that_needs_an_optional_group_says_so_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", REFUSED)
    assert done.returncode != 0
    assert "the backend of pytorch cannot run a recorded call alone, which this needs." in done.stderr.splitlines()[-1]
