"""Training scripts in processes of their own; see ``tests/backends/support/forks.py``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import forks
import pytest


class Scripts:
    """Starts scripts as forks of a process that has imported torch and done nothing with it."""

    def run(
        self, folder: Path, code: str, kill_after: float | None = None, copies: int = 1, tool_imported: bool = True
    ) -> Any:
        """Run `code` in `folder`; with `kill_after` it is killed so many seconds after it said ``begin``.

        Without `tool_imported` the program changes torch before the tool is imported.
        """
        number = len(list(folder.glob("train*.py")))
        script, out, err = (folder / f"train{number}.{suffix}" for suffix in ("py", "out", "err"))
        script.write_text(code, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT}
        environment.pop("MSPROBE_LOG_LEVEL", None)
        ended = forks.server(*forks.MODULES["torch and the tool" if tool_imported else "torch"]).run(
            script, *[()] * copies, environment=environment, output=(out, err), kill_after=kill_after,
            without_warnings=True, tear_down=True,
        )  # fmt: skip
        return ended[0] if copies == 1 else ended


@pytest.fixture
def scripts() -> Scripts:
    return Scripts()
