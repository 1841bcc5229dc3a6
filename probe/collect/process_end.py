"""The end of this process, and its forks, as sessions must know them."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import Any, Callable

from typing_extensions import Protocol


class OfProcess(Protocol):
    """An object that has to know of the end of its process and of forks."""

    def forked(self) -> None:
        """Begin anew in a child of the process in which the object was made."""


class ProcessEnd:
    """Calls `action` once when the process ends, until `cancel`."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        atexit.register(action)
        self._worker_end = _at_end_of_worker(action)

    def cancel(self) -> None:
        atexit.unregister(self._action)
        if self._worker_end is not None:
            self._worker_end.cancel()


def _at_end_of_worker(action: Callable[[], None]) -> Any:
    """Have `action` called when a worker of multiprocessing ends; a forked one ends without what `atexit` knows.

    Returns:
        What can be cancelled; ``None`` in a process that is no such worker.
    """
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is None or util is None or process.parent_process() is None:
        return None
    return util.Finalize(None, action, exitpriority=0)


# Not a function of each object: what is registered there stays.
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def tell_of_forks(told: OfProcess) -> None:
    """Call `forked` of an object, as long as it is there, in each process that is forked from this one."""
    _told.add(told)


def tell_no_more(told: OfProcess) -> None:
    """Undo `tell_of_forks`."""
    _told.discard(told)


def _forked() -> None:
    for each in list(_told):
        each.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
