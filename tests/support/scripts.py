"""Python in processes of its own, which imports the very package that is tested here, installed or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import probe

CHECKOUT = str(Path(probe.__file__).parents[1])


def python(
    *arguments: str, folder: Path | None = None, timeout: float | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments` in `folder`; `variables` are those of its environment that differ from ours."""
    environment = {**os.environ, "PYTHONPATH": CHECKOUT, **variables}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def script(folder: Path, code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code` as ``train.py`` of a folder, so that its lines can be found again."""
    path = folder / "train.py"
    path.write_text(code, encoding="utf-8")
    return python(str(path), *arguments, folder=folder, **variables)
