"""Programs under ``msprobe run``, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forks


@dataclass
class Ran(forks.ToolLines):
    """What a program left behind that was run so."""

    status: int
    out: str
    written_to_err: str
    folder: Path

    @property
    def steps(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("step*"))

    def data(self, step: int, process: str = "*") -> dict[str, Any]:
        """The records of a step."""
        (path,) = self.folder.glob(f"step{step}/{process}/dump.json")
        records: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["data"]
        return records

    def forwards(self, step: int, root: str = "Module") -> list[str]:
        """The names of the forward records of modules in a step."""
        return [name for name in self.data(step) if name.startswith(f"{root}.") and ".forward." in name]

    @property
    def warnings(self) -> list[str]:
        return [line.partition("] ")[2] for line in self.log.splitlines() if "[WARNING]" in line]


IN_A_FORK = """
import sys
from probe.api.cli import main
sys.exit(main(["run", "-o", "out", *{options!r}, "train.py"]))
"""


def quick(backend: str, folder: Path, program: str, *options: str) -> Ran:
    """The same as `run`, in a fork of a process that has imported the framework before."""
    (folder / "train.py").write_text(program, encoding="utf-8")
    code = IN_A_FORK.format(options=options)
    ended = forks.run_python(backend, folder / "run.py", code=code, without_warnings=True, tear_down=True)
    return Ran(ended.returncode, ended.stdout, ended.stderr, folder / "out")


def run(
    folder: Path, program: str, *options: str, arguments: tuple[str, ...] = (), launcher: tuple[str, ...] = ()
) -> Ran:
    """Run `program` as a script under ``msprobe run`` with `options`, in an interpreter of its own."""
    script = folder / "train.py"
    script.write_text(program, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT, "GLOG_v": "3"}
    output = folder / "out"
    command = [sys.executable, *launcher, "-m", "msprobe", "run", "-o", str(output), *options, "train.py", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert not forks.LOG_LINE.search(done.stdout), f"a line of the tool's in {done.stdout}"
    return Ran(done.returncode, done.stdout, done.stderr, output)
