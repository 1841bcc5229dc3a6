"""A fourth backend, `toy_adapter`, which has no optional group: with the core of the protocol all of this works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe.api.cli import main

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


def test_its_dumps_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(tmp_path, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    for target, status, says in (("same", 0, "no divergence"), ("other", 1, "first divergence")):
        paths = ("-tp", target, "-gp", "golden", "-o", f"of_{target}")
        assert main(["compare", *paths, "--fail-on", "divergence"]) == status
        said = capsys.readouterr().out
        assert says in said and ("head" in said) == (target == "other")
    (dump,) = tmp_path.glob("golden/step0/*/dump.json")
    assert "Module.body.fc.Linear.backward.0" in json.loads(dump.read_text(encoding="utf-8"))["data"]


def test_a_task_that_needs_an_optional_group_says_so_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", REFUSED)
    assert done.returncode != 0
    assert "the backend of pytorch cannot run a recorded call alone, which this needs." in done.stderr.splitlines()[-1]
