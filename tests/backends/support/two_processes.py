"""Two processes that talk through gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from free_port import free_port


def run(folder: Path, source: str, *arguments: str, timeout: float = 90) -> list[str]:
    """Run `source` as ranks 0 and 1, with the rank, a free port and `arguments`; what each wrote to the terminal."""
    port = str(free_port())
    script = folder / "script.py"
    script.write_text(source, encoding="utf-8")
    paths = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), port, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        return [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
