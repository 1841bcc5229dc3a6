"""The environment of a followed program, by which a Python that it starts is collected from as well.

Three variables: ``PYTHONPATH`` begins with the folder ``site``, so that a new Python runs the ``sitecustomize`` there,
`FOLLOW` says what to collect, and `FRAMEWORKS_VARIABLE` names the modules that are waited for. They are handed on by
whatever starts whatever; what is no Python ignores them, and so does a Python with ``-I``, ``-E`` or ``-S``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import msgspec

from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.dump.processes import RunProcess, order_of_child

FOLLOW = "MSPROBE_FOLLOW"
"""Variable name that stands in ``site/sitecustomize.py`` as well, which cannot import us."""
FRAMEWORKS_VARIABLE = "MSPROBE_FOLLOW_FRAMEWORKS"
"""Another such name, no part of `FOLLOW`: a Python that imports no framework should not have to import ``json``."""
_PATH = "PYTHONPATH"
_HERE = os.path.dirname(os.path.abspath(__file__))
_SITE = os.path.join(_HERE, "site")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
"""The folder that this package is imported from."""
UNWATCHED_FILE = "unwatched_processes.log"
"""In the dump path: a line of JSON for each process that imported a framework and could not be watched."""
_LARGEST = 1 << 20
"""Bytes that are read of the file; a guess, some thousands of processes."""


@dataclass(frozen=True)
class Followed:
    """The instructions for a followed process.

    Args:
        config_path, arguments, step_after: Those of `probe.api.run.RunningProgram`.
        run: That of `RunProcess`.
        order: That of the process which started it.
        began: When that one began, in seconds.
        root, prefix: Where this package is, and the environment of its Python.
    """

    config_path: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    arguments: dict[str, Any]
    step_after: str
    run: str
    order: tuple[int, ...]
    began: float
    root: str
    prefix: str

    def process(self, started: float) -> RunProcess:
        """The process that has started at `started`, in seconds."""
        return RunProcess(self.run, order_of_child(self.order, self.began, started))


def variables() -> dict[str, str]:
    """The variables of this process by which what it starts is followed."""
    return {name: os.environ[name] for name in (_PATH, FOLLOW, FRAMEWORKS_VARIABLE) if name in os.environ}


def read(text: str) -> Followed:
    """The value of the variable `FOLLOW`."""
    given = json.loads(text)
    return Followed(**{**given, "order": tuple(given["order"])})


@dataclass(frozen=True)
class _Note:
    run: str
    pid: int
    program: str
    reason: str


class FollowedChildren:
    """Has children followed until `remove`.

    Args:
        config_path, arguments, step_after: Those of `probe.api.run.RunningProgram`.
    """

    def __init__(self, config_path: str | None, arguments: dict[str, Any], step_after: str) -> None:
        self._given = config_path, arguments, step_after
        self._before = os.environ.get(_PATH)
        self._path = self._before or ""
        if self._path.split(os.pathsep)[0] != _SITE:  # as where the process is followed itself
            # An empty part, which is the current folder, stays one.
            self._path = os.pathsep.join([_SITE, *([self._path] if self._path else [])])
        os.environ[_PATH] = self._path

    def tell(self, process: RunProcess) -> None:
        """From now on this process is `process`, and what it starts is started by that."""
        told = Followed(*self._given, process.run, process.order, time.time(), ROOT, sys.prefix)
        os.environ[FOLLOW] = json.dumps(vars(told))
        os.environ[FRAMEWORKS_VARIABLE] = ",".join(framework.module for framework in FRAMEWORKS.values())

    def remove(self) -> None:
        """Take out of the environment what was put in, and leave what the program has changed."""
        for name in (FOLLOW, FRAMEWORKS_VARIABLE):
            os.environ.pop(name, None)
        path = os.environ.get(_PATH, "")
        before: str | None = os.pathsep.join(each for each in path.split(os.pathsep) if each != _SITE)
        if path == self._path:
            before = self._before
        if before is None:
            os.environ.pop(_PATH, None)
        else:
            os.environ[_PATH] = before


def unwatched(dump_path: str, run: str) -> Iterator[str]:
    """A sentence for each process of `run` that could not be watched."""
    try:
        with open(os.path.join(dump_path, UNWATCHED_FILE), encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_LARGEST).splitlines()
    except OSError:
        return  # there is none
    for line in lines:
        try:
            note = msgspec.json.decode(line, type=_Note)
        except msgspec.DecodeError:
            continue  # the process was killed while it wrote
        if note.run == run:
            yield f"process {note.pid} ({note.program}) was not watched: {note.reason}"
