"""The processes that are one run: what ``msprobe run`` began, and what these processes started.

Each folder of a process gets a small file ``process.json``. A folder without it is of an older release, or of a script
that makes its own debugger: nobody can say then to which run it belongs.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from typing import Optional

import msgspec
from msgspec.structs import asdict

from probe.common import clock, files
from probe.common.dump.layout import PROCESS_FILE
from probe.common.errors import FileCheckException

_LARGEST = 1 << 16
"""Bytes of a file that can be one of ours."""
_LONGEST_PROGRAM = 300
"""Characters of a command line that are kept; a guess."""


class RunProcess(msgspec.Struct, frozen=True):
    """One process of a run.

    Args:
        run: A text that all processes of the run have in common, and no other run has.
        order: Sorts the processes of a run by when they were started: how many microseconds that was after the parent
            began, behind those of the parent; empty for the process that began the run.
        pid: Its process number.
        program: The command line that it ran, without secrets and folders, shortened.
    """

    run: str
    order: tuple[int, ...] = ()
    pid: int = 0
    program: str = ""

    def is_below(self, other: RunProcess) -> bool:
        """True if `other` started it, or started a process that did."""
        return self.run == other.run and self.order != other.order and self.order[: len(other.order)] == other.order


_SECOND = 1_000_000
"""Microseconds of a second."""
_present: Optional[RunProcess] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
_began = 0.0
"""The time at which this process became what it is, in seconds."""
_started = 0
"""The number of processes that this one has started."""
_last = 0
"""The last part of the order of the one that was started last."""


def present() -> RunProcess | None:
    """The role of this process in its run; ``None`` outside ``msprobe run``."""
    return _present


def begin_run() -> RunProcess:
    """Begin a run with this process, or is one of those that a launcher has started together."""
    import secrets  # by the process that begins a run alone

    return adopt(_launched() or RunProcess(f"{clock.stamp('%Y%m%d%H%M%S')}-{secrets.token_hex(8)}"))


def _launched() -> RunProcess | None:
    """The role of this process among the workers of torchrun or ``accelerate launch``, which are one run.

    They have their parent in common, and each attempt of it is another run. Workers of other machines have ranks.
    """
    launcher, rank = os.environ.get("TORCHELASTIC_RUN_ID"), os.environ.get("RANK", "")
    if launcher is None or not rank.isdecimal():
        return None
    try:
        with open(f"/proc/{os.getppid()}/stat", encoding="utf-8", errors="replace") as stream:
            # When it was started; its name, in parentheses, may hold anything.
            since = stream.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None  # process numbers alone come again
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    parts = (platform.node(), str(os.getppid()), since, launcher, attempt)
    return RunProcess(hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:24], (int(rank),))


def adopt(process: RunProcess) -> RunProcess:
    """Take this process for `process`, which another one may have named without knowing its process number."""
    global _present, _began, _started, _last
    _present = RunProcess(process.run, process.order, os.getpid())
    _began, _started, _last = clock.now(), 0, 0
    return _present


def started() -> int:
    """The number of processes that this one has forked or spawned since its run began."""
    return _started


def next_child() -> RunProcess | None:
    """The role of the process that this one starts next."""
    _count()
    return None if _present is None else RunProcess(_present.run, (*_present.order, _last))


def order_of_child(order: tuple[int, ...], began: float, started: float) -> tuple[int, ...]:
    """The order of a process that nobody has counted, by when it and the parent, of `order`, have begun in seconds."""
    return *order, max(1, int((started - began) * _SECOND))


def _count() -> None:
    global _started, _last
    _started += 1
    # Never twice the same, however fast they are started and however the clock is set.
    _last = max(_last + 1, int((clock.now() - _began) * _SECOND))


def _forked() -> None:
    if _present is not None:
        # The parent has counted this one before.
        adopt(RunProcess(_present.run, (*_present.order, _last)))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_count, after_in_child=_forked)


def write(folder: str, program: Callable[[], Sequence[str]]) -> None:
    """Note in `folder` which process of which run writes there, if that is known.

    Args:
        folder: The folder of a step and rank.
        program: Gives the words of the command line of this process, without secrets; called where they are written.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.path.join(folder, PROCESS_FILE)
    if _present is not None:
        # Arguments may hold bytes that are no text.
        shown = " ".join(program())[:_LONGEST_PROGRAM].encode("utf-8", "backslashreplace").decode()
        with files.replacing(path) as stream:
            # What it runs is known only now: a spawned process learns it late.
            stream.write(json.dumps({"format": 1, **asdict(_present), "program": shown}).encode())
    elif os.path.lexists(path):
        os.unlink(path)  # of an earlier run into the same folder


def read(folder: str) -> RunProcess | None:
    """The process that wrote into `folder`; ``None`` if nothing says so, or what does is damaged."""
    try:
        with files.open_for_reading(os.path.join(folder, PROCESS_FILE)) as stream:
            return msgspec.json.decode(stream.read(_LARGEST), type=RunProcess)
    except (OSError, FileCheckException, msgspec.DecodeError, RecursionError):
        return None
