"""Trainings under a debugger: their configuration, and the calls of the debugger around a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_config(folder: Path, task: str = "statistics", level: str = "L1") -> None:
    """Write ``config.json`` to a folder: everything is collected, into ``dump`` beside it."""
    config = {"task": task, "level": level, "risk_level": "ALL", "dump_path": str(folder / "dump"), task: {}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def collecting(debugger: Any) -> Callable[[Any, Callable[[], Any]], Any]:
    """A function of a model and a step of its training, which is collected; it returns what the step does."""

    def around(model: Any, step: Callable[[], Any]) -> Any:
        debugger.start(model)
        seen = step()
        debugger.stop()
        debugger.step()
        return seen

    return around
