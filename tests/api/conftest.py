"""Training scripts in processes of their own, without the seconds that importing a framework takes each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import probe

NURSERY = """
import json, os, signal, sys, time
import torch

torch.set_num_threads(1)
for line in sys.stdin:
    job = json.loads(line)
    children = []
    for _ in range(job["copies"]):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(job["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
            os.dup2(os.open(job["err"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(os.path.dirname(job["script"]))
            with open(job["script"], encoding="utf-8") as stream:
                code = compile(stream.read(), job["script"], "exec")
            # Nothing is caught here: the script ends as if it had been started by itself, atexit functions included.
            exec(code, {"__name__": "__main__", "__file__": job["script"]})
            sys.exit()
        children.append(child)
    if job["kill_after"] is not None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with open(job["out"], "ab+") as stream:
                stream.seek(0)
                if b"> begin" in stream.read():
                    break
            time.sleep(0.001)
        time.sleep(job["kill_after"])
        for child in children:
            os.kill(child, signal.SIGKILL)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps([children, statuses]), flush=True)
"""


class Ended:
    """What a script left behind when it ended; `status` is negative after a signal."""

    def __init__(self, status: int, pid: int, out: str, err: str) -> None:
        self.status = status
        self.pid = pid
        self.out = out
        self.err = err
        self.said = [line[2:] for line in out.splitlines() if line.startswith("> ")]
        """The lines that the script itself wrote, each whole."""


class Scripts:
    """Starts scripts as forks of a process that has imported torch and done nothing with it."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1])}
        environment.pop("MSPROBE_LOG_LEVEL", None)
        command = [sys.executable, "-W", "ignore", "-c", NURSERY]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run(self, folder: Path, code: str, kill_after: float | None = None, copies: int = 1) -> Any:
        """Run `code` in `folder`; with `kill_after` it is killed so many seconds after it said ``begin``."""
        number = len(list(folder.glob("train*.py")))
        script, out, err = (folder / f"train{number}.{suffix}" for suffix in ("py", "out", "err"))
        script.write_text(code, encoding="utf-8")
        job = {"script": str(script), "out": str(out), "err": str(err), "kill_after": kill_after, "copies": copies}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"no answer; {err.read_text() if err.exists() else ''}"
        pids, statuses = json.loads(answer)
        texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
        ended = [Ended(status, pid, *texts) for pid, status in zip(pids, statuses)]
        return ended[0] if copies == 1 else ended

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def scripts() -> Iterator[Scripts]:
    scripts = Scripts()
    yield scripts
    scripts.end()
