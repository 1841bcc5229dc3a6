"""What the benchmarks share: starting interpreters, medians and tables. Needs nothing but Python."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
QUIET = {"GLOG_v": "3"}
"""MindSpore writes warnings about itself on stderr otherwise."""

FRONT_ENDS = {"torch": "msprobe.pytorch", "mindspore": "msprobe.mindspore", "msadapter": "msprobe.mindspore"}
"""Backend -> the module that has its `PrecisionDebugger`. A backend comes in here and as ``models_<backend>.py``."""
PACKAGES = {"torch": ["torch"], "mindspore": ["mindspore"], "msadapter": ["mindspore", "mindnlp"]}
"""Backend -> the packages whose versions are part of a result."""


class Failed(Exception):
    """A measuring process ended without a result."""


def check_backend(name: str) -> str:
    """The type of a ``--backend`` argument."""
    if name not in FRONT_ENDS:
        raise argparse.ArgumentTypeError(f"no benchmark for {name!r} yet; there is: {', '.join(FRONT_ENDS)}")
    return name


def check_torch(name: str) -> str:
    """The same for a benchmark that only PyTorch has."""
    if name != "torch":
        raise argparse.ArgumentTypeError(f"no such benchmark for {name!r} yet; there is: torch")
    return name


def run_worker(python: str, script: str, arguments: dict[str, Any]) -> Any:
    """Run ``script --worker`` in its own process and empty folder; what its function returned.

    Raises:
        Failed: it gave no result; the message ends with the last lines it printed.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark_") as folder:
        result = os.path.join(folder, "result.json")
        command = [python, os.path.abspath(script), "--worker", json.dumps(arguments), result]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **ONE_THREAD, **QUIET},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode != 0 or not os.path.exists(result):
            tail = "\n".join(done.stdout.splitlines()[-15:])
            raise Failed(f"{os.path.basename(script)} {arguments} ended with {done.returncode}:\n{tail}")
        return json.loads(Path(result).read_text(encoding="utf-8"))


class Cost(NamedTuple):
    """What a command took."""

    wall_s: float
    cpu_s: float
    memory_mib: float
    """Of its largest process."""


def cost(command: Sequence[str], folder: str, environment: Mapping[str, str] | None = None) -> Cost:
    """Run `command` in `folder`; a finding, which is status 1, is no failure.

    Raises:
        Failed: it ended with another status; the message ends with the last lines it printed.
    """
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            said.seek(0)
            tail = "\n".join(said.read().decode(errors="replace").splitlines()[-15:])
            raise Failed(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def least(costs: Sequence[Cost]) -> Cost:
    """The least of each number."""
    return Cost(*map(min, zip(*costs)))


def worker_arguments() -> dict[str, Any] | None:
    """The arguments `run_worker` gave to this process, or ``None`` in a process the user started."""
    if sys.argv[1:2] != ["--worker"]:
        return None
    arguments: dict[str, Any] = json.loads(sys.argv[2])
    return arguments


def give_result(value: Any) -> None:
    """Hand the result to `run_worker`."""
    Path(sys.argv[3]).write_text(json.dumps(value), encoding="utf-8")


def middle(values: Sequence[float]) -> float:
    """The median."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def spread(values: Sequence[float]) -> list[float]:
    """The first and third quartile."""
    ordered = sorted(values)
    return [ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4 - (len(ordered) % 4 == 0)]]


def machine(packages: Sequence[str], processors: str = "one thread") -> str:
    """One line that says what was measured on."""
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    today = datetime.date.today().isoformat()
    return ", ".join([_processor(), processors, f"Python {platform.python_version()}", *versions, today])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up, numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [[text.ljust(width) for text, width in zip(head, widths)]]
    lines.append(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    for row in rows:
        lines.append([row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:]))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
