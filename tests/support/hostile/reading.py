"""Reads files in a process whose memory is limited, and holds what came of each against what was promised."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from hostile import files

import probe

ROOT = Path(probe.__file__).parents[1]
CHILD = Path(__file__).with_name("reading_in_child.py")
MIB = 160
"""Address space that reading any of the files may take beyond what the process had; all but the bombs are tiny."""
LONGEST_MESSAGE = 1000


class Outcome(NamedTuple):
    path: str
    error: str | None
    message: str
    growth: float


def write(folder: Path, cases: dict[str, Any], suffix: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name, content in cases.items():
        (folder / (name + suffix)).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [str(folder / (name + suffix)) for name in cases]


def read_in_child(reader: str, paths: list[str], mib: int = MIB) -> list[Outcome]:
    command = [sys.executable, str(CHILD), str(mib), reader, *paths]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, (done.stdout[-300:], done.stderr[-2000:])
    return [Outcome(*outcome) for outcome in json.loads(done.stdout[done.stdout.index("[") :])]


def assert_refused(outcomes: list[Outcome]) -> None:
    for path, error, message, growth in outcomes:
        assert error is not None and "MsprobeException" in error.split(), (path, error, message)
        assert path in message and len(message) - message.count(path) * len(path) < LONGEST_MESSAGE, message
        assert growth < 64, (path, growth)
    assert not os.path.exists(files.CANARY)
