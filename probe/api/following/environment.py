"""What the environment of a followed program holds, by which a Python that it starts is collected from as well.

Two variables: ``PYTHONPATH`` begins with the folder ``site``, so that a new Python runs the ``sitecustomize`` there, and
`FOLLOW` says what to collect. Both are handed on by whatever starts whatever; what is no Python ignores them, and so does
a Python with ``-I``, ``-E`` or ``-S``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from probe.common.dump.processes import RunProcess

FOLLOW = "MSPROBE_FOLLOW"
"""Also in ``site/sitecustomize.py``, which cannot import us."""
_PATH = "PYTHONPATH"
_HERE = os.path.dirname(os.path.abspath(__file__))
_SITE = os.path.join(_HERE, "site")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
UNWATCHED_FILE = "unwatched_processes.log"
"""In the dump path: a line of JSON for each process that imported a framework and could not be watched."""
_LARGEST = 1 << 20


@dataclass(frozen=True)
class Followed:
    """What a followed process is told.

    Args:
        config_path, arguments, step_after: Those of `probe.api.run.RunningProgram`.
        run: That of `RunProcess`.
        order: That of the process which started it.
        began: When that one began, in seconds.
        root, prefix: Where this package is, and the environment of its Python.
    """

    config_path: str | None
    arguments: dict[str, Any]
    step_after: str
    run: str
    order: tuple[int, ...]
    began: float
    root: str
    prefix: str

    def process(self, started: float) -> RunProcess:
        """The process that has started at `started`; nobody has counted it, so time stands for its number."""
        return RunProcess(self.run, (*self.order, max(1, int((started - self.began) * 1e6))))


def read(text: str) -> Followed:
    """What the variable `FOLLOW` says."""
    given = json.loads(text)
    return Followed(**{**given, "order": tuple(given["order"])})


class FollowedChildren:
    """Has children followed until `remove`.

    Args:
        config_path, arguments, step_after: Those of `probe.api.run.RunningProgram`.
    """

    def __init__(self, config_path: str | None, arguments: dict[str, Any], step_after: str) -> None:
        self._given = config_path, arguments, step_after
        paths = os.environ.get(_PATH, "").split(os.pathsep)
        os.environ[_PATH] = os.pathsep.join([_SITE, *(path for path in paths if path and path != _SITE)])

    def tell(self, process: RunProcess) -> None:
        """From now on this process is `process`, and what it starts is started by that."""
        told = Followed(*self._given, process.run, process.order, time.time(), _ROOT, sys.prefix)
        os.environ[FOLLOW] = json.dumps(vars(told))

    def remove(self) -> None:
        """Take out of the environment what was put in, and leave what the program has changed."""
        os.environ.pop(FOLLOW, None)
        paths = [path for path in os.environ.get(_PATH, "").split(os.pathsep) if path and path != _SITE]
        if paths:
            os.environ[_PATH] = os.pathsep.join(paths)
        else:
            os.environ.pop(_PATH, None)


def unwatched(dump_path: str, run: str) -> Iterator[str]:
    """A sentence for each process of `run` that could not be watched."""
    try:
        with open(os.path.join(dump_path, UNWATCHED_FILE), encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_LARGEST).splitlines()
    except OSError:
        return  # there is none
    for line in lines:
        try:
            note = json.loads(line)
        except ValueError:
            continue  # the process was killed while it wrote
        if note.get("run") == run:
            yield f"process {note['pid']} ({note['program']}) was not watched: {note['reason']}"
