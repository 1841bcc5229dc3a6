"""Python programs in processes of their own, without the seconds that importing a framework takes each time.

Each program runs in a fork of a server, `fork_server.py`, that has imported the framework and done nothing with it: as
separate as in an interpreter of its own, for a tenth of the time. What an interpreter or a framework reads when it
starts (``PYTHONHASHSEED``, ``OMP_NUM_THREADS``, variables of malloc) is the server's; a program that needs another
value takes a fresh interpreter.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import probe

CHECKOUT = str(Path(probe.__file__).parents[1])
STARTED_WITH = {"PYTHONHASHSEED": "0"}
LOG_LINE = re.compile(r"\(\d+\)( \[rank \d+\])? \[(DEBUG|INFO|WARNING|ERROR)\] ")
"""The beginning of a line of the tool's, after the time."""
_COUNTED_AT_THE_END = re.compile(
    r"^(nanobind: (leaked|this is likely)| - (leaked |\.\.\. skipped)|See https://nanobind).*\n?", re.MULTILINE
)
"""What bindings in the server's memory, Triton's with a build for CUDA, say of themselves when a fork is torn down."""
MODULES = {
    # An optimizer's first step imports the second, which takes as long as the first.
    "torch": ("torch", "torch._dynamo"),
    "transformers": ("torch", "torch._dynamo", "transformers.modeling_utils"),
    "mindspore": ("mindspore",),
    "msadapter": ("mindspore",),
    "toy": ("numpy",),
    # The tool takes two thirds of a second, which most of these programs take for themselves, too.
    "mindspore and the tool": ("mindspore", "mindspore.train", "mindspore.dataset", "msprobe.mindspore", *(
        f"probe.{name}" for name in ("api.cli", "backends.mindspore.adapter", "common.dump.reading.dump")
    )),
    "msadapter and the tool": ("mindtorch_first", "msprobe.mindspore", "probe.backends.msadapter.adapter"),
    # Most of what `msprobe run` imports, which takes as long as a short training; nothing of it watches for forks.
    "torch and the tool": (
        "torch", "torch._dynamo", "probe.backends.torch.execution.group", "probe.backends.torch.hooks.group",
        "probe.backends.torch.step_keeper", "probe.common.dump.reading.dump",
    ),
}  # fmt: skip
"""By backend, and for models of Transformers, what the server imports.

Programs over msadapter import mindtorch themselves, in their own order; those with the tool do it as everybody does.
"""


def with_tool(backend: str) -> tuple[str, ...]:
    """The imports of the server for programs that begin with the framework and the tool."""
    return MODULES.get(f"{backend} and the tool", MODULES[backend])


class ToolLines:
    """Tells the tool's lines in standard error from what else is there."""

    written_to_err: str

    @property
    def log(self) -> str:
        """The tool's own lines."""
        return "".join(line for line in self.written_to_err.splitlines(keepends=True) if LOG_LINE.search(line))

    @property
    def err(self) -> str:
        """What else was written to standard error."""
        return self.err_of(self.written_to_err)

    @staticmethod
    def err_of(text: str) -> str:
        """The lines of `text` that are not the tool's."""
        return "".join(line for line in text.splitlines(keepends=True) if not LOG_LINE.search(line))


@dataclass
class Ended(ToolLines):
    """What a program left behind when it ended."""

    status: int
    """Negative after a signal; ``-SIGALRM`` when it took longer than it may."""
    pid: int
    out: str
    written_to_err: str

    @property
    def said(self) -> list[str]:
        """The lines that the program itself wrote, each whole."""
        return [line[2:] for line in self.out.splitlines() if line.startswith("> ")]


class ForkServer:
    """A process that has imported `modules`, and forks for each program."""

    def __init__(self, *modules: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name("fork_server.py")), *modules]
        environment = {**os.environ, **STARTED_WITH, "PYTHONPATH": CHECKOUT}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run(
        self,
        script: Path,
        *arguments: Sequence[str],
        code: str | None = None,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        output: tuple[Path, Path] | None = None,
        kill_after: float | None = None,
        timeout: int = 300,
        without_warnings: bool = False,
        tear_down: bool = False,
    ) -> list[Ended]:
        """Run a program, in as many processes at once as there are lists of `arguments`, and wait for all of them.

        Args:
            script: the program's file.
            code: its text, where the file is not there to be read.
            cwd: its working directory; by default the script's folder.
            environment: its variables; by default those of this process and the package that is tested.
            output: files for what all processes write, outputs and errors; by default each has its own.
            kill_after: seconds after which it is killed, counted from the line ``> begin`` that it writes.
            timeout: seconds after which it is ended by a signal.
            without_warnings: whether Python's warnings are ignored in it.
            tear_down: whether the interpreter takes itself apart at its end, which a quarter of a second goes into.
                Without it threads are waited for and atexit functions are called, and no more.
        """
        with tempfile.TemporaryDirectory() as folder:
            files = [output or (Path(folder, f"{n}.out"), Path(folder, f"{n}.err")) for n in range(len(arguments))]
            job = {
                "script": str(script),
                "code": script.read_text(encoding="utf-8") if code is None else code,
                "cwd": str(cwd or script.parent),
                "environment": dict(environment or {**os.environ, "PYTHONPATH": CHECKOUT}),
                "processes": [
                    {"arguments": list(given), "out": str(out), "err": str(err)}
                    for given, (out, err) in zip(arguments, files)
                ],
                "kill_after": kill_after,
                "timeout": timeout,
                "without_warnings": without_warnings,
                "tear_down": tear_down,
            }
            pids, statuses = self._ask(job)
            texts = [[_text(path) if path.exists() else "" for path in pair] for pair in files]
        for out, _ in texts:
            # But for processes that write both into one file.
            assert (output and output[0] == output[1]) or not LOG_LINE.search(out), f"a line of the tool's in {out}"
        return [Ended(status, pid, *pair) for pid, status, pair in zip(pids, statuses, texts)]

    def _ask(self, job: dict[str, object]) -> tuple[list[int], list[int]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, f"the fork server has ended with {self._process.wait()}"
        pids, statuses = json.loads(answer)
        return pids, statuses

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _text(path: Path) -> str:
    return _COUNTED_AT_THE_END.sub("", path.read_text(errors="replace"))


@functools.cache
def server(*modules: str) -> ForkServer:
    """The server with `modules`, one for all tests of this process."""
    started = ForkServer(*modules)
    atexit.register(started.end)
    return started


def run_python(backend: str, script: Path, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    """Run a program over `backend`; what `subprocess.run` would return for an interpreter of its own.

    `more` is what `ForkServer.run` takes.
    """
    (ended,) = server(*MODULES[backend]).run(script, arguments, **more)  # type: ignore[arg-type]
    return subprocess.CompletedProcess([str(script), *arguments], ended.status, ended.out, ended.written_to_err)
