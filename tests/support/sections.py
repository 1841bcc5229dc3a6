"""The programs of benchmarks/verdicts, for tests."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.append(str(BENCHMARKS))

import verdicts  # noqa: E402


def load(name: str) -> ModuleType:
    """The program of a section, as a module of its own name."""
    module: ModuleType = verdicts.loaded(name, BENCHMARKS / "verdicts" / name / "run.py")
    return module
