"""One step of a model of PyTorch, collected in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def collected(model: Any, path: Path, level: str) -> Iterator[None]:
    """Collect the statistics of what is run inside, as a step of its own in `path`.

    A process has one debugger; here each run has its own.
    """
    from msprobe.pytorch import PrecisionDebugger

    PrecisionDebugger._instance = None
    debugger = PrecisionDebugger(task="statistics", level=level, dump_path=str(path))
    debugger.start(model)
    yield
    debugger.stop()
    debugger.step()
    PrecisionDebugger._instance = None
