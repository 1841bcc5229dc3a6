"""Importing the package costs next to nothing and touches no framework."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FRAMEWORKS = ("torch", "torch_npu", "mindspore", "mindtorch", "mindnlp")
LIBRARIES = ("transformers", "accelerate", "lightning", "pytorch_lightning")
LIMIT_S = 0.15


def python(code: str, **environment: str) -> str:
    """Run `code` away from the checkout, so that what is imported is what is installed."""
    command, env = [sys.executable, "-c", code], {**os.environ, **environment}
    done = subprocess.run(command, env=env, cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cpu_seconds(statement: str) -> float:
    """Return the least processor time of five interpreters that only execute `statement`."""
    return min(float(python(f"{statement}\nimport time; print(time.process_time())")) for _ in range(5))


@pytest.fixture
def forbidden_frameworks(tmp_path: Path) -> str:
    """A PYTHONPATH on which every framework ends the interpreter that imports it, installed or not."""
    for name in FRAMEWORKS + LIBRARIES:
        # SystemExit, because `except Exception` around an import must not hide it.
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__name__} was imported')\n", encoding="utf-8")
    return os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))


def test_import_touches_no_framework(forbidden_frameworks: str) -> None:
    python("import probe, msprobe, msprobe.pytorch.integrations", PYTHONPATH=forbidden_frameworks)


def test_the_trap_for_frameworks_works(forbidden_frameworks: str) -> None:
    with pytest.raises(AssertionError, match="torch was imported"):
        python("try:\n    import torch\nexcept Exception:\n    pass", PYTHONPATH=forbidden_frameworks)


def test_import_is_cheap() -> None:
    cost = cpu_seconds("import probe, msprobe") - cpu_seconds("pass")
    assert cost < LIMIT_S, f"import probe, msprobe took {cost:.3f} s of processor time, allowed: {LIMIT_S} s"


def test_the_command_line_waits_for_nothing_that_only_one_command_needs() -> None:
    loaded = python("import probe.api.cli, sys; print(*sys.modules)").split()
    assert not {"numpy", "msgspec", "subprocess", "concurrent", "probe.api.run"}.intersection(loaded)


def test_a_program_that_imports_the_debugger_imports_no_part_of_another_task() -> None:
    loaded = python("from msprobe.pytorch import PrecisionDebugger; import sys; print(*sys.modules)").split()
    others = [
        "compare", "graph", "monitor", "api.monitoring", "precheck", "rerun", "runtime_checks", "common.dump.reading",
    ]  # fmt: skip
    assert not [name for name in loaded if name.startswith(tuple(f"probe.{other}" for other in others))]


def test_a_comparison_of_statistics_imports_nothing_of_other_commands(tmp_path: Path) -> None:
    dump = '{"task": "statistics", "level": "L1", "framework": "pytorch", "data": {}}'
    (tmp_path / "dump.json").write_text(dump, encoding="utf-8")
    command = ["compare", str(tmp_path), str(tmp_path), "-o", str(tmp_path)]
    said = python(f"import sys; from probe.api.cli import main; main({command}); print(*sys.modules)")
    loaded = said.splitlines()[-1].split()
    assert "probe.compare.runner" in loaded
    assert not {"numpy", "multiprocessing", "probe.api.commands.run", "probe.backends.protocol"}.intersection(loaded)
