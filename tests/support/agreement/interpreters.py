"""Runs a program with each framework's own interpreter."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

BACKENDS = ("torch", "mindspore", "msadapter")


def interpreter(backend: str) -> str:
    """The Python of the environment where `backend` is installed.

    Raises:
        AssertionError: there is none.
    """
    variable = f"PROBE_PYTHON_{backend.upper()}"
    python = os.environ.get(variable)
    assert python and Path(python).is_file(), (
        f"{variable} is {python!r}; it must be an interpreter with {backend} and this package, such as that of "
        f"`tox run -e {backend}`."
    )
    return python


def run(backend: str, program: Path, *arguments: str) -> None:
    """Run `program` where `backend` is installed.

    Raises:
        AssertionError: there is no such interpreter, or the program fails.
    """
    python = interpreter(backend)
    done = subprocess.run(
        [python, str(program), *arguments], env={**os.environ, "GLOG_v": "3"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
