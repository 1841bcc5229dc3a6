"""Two processes that talk through gloo."""

from __future__ import annotations

import os
from pathlib import Path

import forks
from free_port import free_port


def run(folder: Path, source: str, *arguments: str, timeout: int = 90) -> list[str]:
    """Run `source` as ranks 0 and 1, with the rank, a free port and `arguments`; what each wrote to the terminal."""
    port = str(free_port())
    script = folder / "script.py"
    script.write_text(source, encoding="utf-8")
    paths = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ended = forks.server(*forks.MODULES["torch"]).run(
        script, *([str(rank), port, *arguments] for rank in (0, 1)), environment=environment, timeout=timeout,
        tear_down=True,
    )  # fmt: skip
    return [process.out + process.written_to_err for process in ended]
