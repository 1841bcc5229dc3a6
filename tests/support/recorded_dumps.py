"""Dumps of one step, made once; a conftest.py that imports `recorded` gives it to the tests beside it."""

from __future__ import annotations

import os
from pathlib import Path

import forks
import pytest

SCRIPT = Path(__file__).with_name("recorded_step.py")


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the dump.json of the step by task."""
    found = {}
    for task in ("tensor", "statistics"):
        folder = tmp_path_factory.mktemp(task)
        environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT}
        ran = forks.run_python("torch", SCRIPT, str(folder), task, environment=environment, without_warnings=True)
        assert ran.returncode == 0, ran.stderr[-2000:]
        (path,) = folder.glob("step0/*/dump.json")
        found[task] = str(path)
    return found
