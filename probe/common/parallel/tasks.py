"""Many tasks of one kind, done in this process, in worker processes or on a dask cluster."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Generic, Optional, TypeVar

import msgspec

from probe.common import log
from probe.common.errors import MsprobeException

Task = TypeVar("Task")
Result = TypeVar("Result")
Done = Callable[[], None]
"""Called once per task, as soon as it is finished."""


class ProcessDied(MsprobeException):
    """The process that worked on a task is gone."""

    def __init__(self, message: str, pid: int = 0) -> None:
        super().__init__(message, pid)
        self.message, self.pid = message, pid

    def __str__(self) -> str:
        return self.message


class Outcome(msgspec.Struct, Generic[Result], frozen=True):
    """The outcome of one task."""

    value: Optional[Result] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    error: Optional[Exception] = None  # noqa: UP045
    """The reason why there is no value: a mistake of the user's, a file that cannot be written, or a process that
    died."""
    logged: list[log.LogLine] = msgspec.field(default_factory=list)
    """Log lines of another process, in their order; here they were shown at once."""


Outcomes = Generator[Outcome[Result], None, None]
"""Closing it before its end lets no process go on."""


class Where(msgspec.Struct, frozen=True):
    """The processes that do the work.

    Args:
        jobs: at most so many of this machine, this one if it is 1; ``None`` for as many as there are processors.
        dask: address of the scheduler of a dask cluster, which does it instead.
    """

    jobs: Optional[int] = None  # noqa: UP045
    dask: Optional[str] = None  # noqa: UP045


def processors() -> int:
    """The number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def attempt(work: Callable[[Task], Result], task: Task) -> Outcome[Result]:
    """Do one task; errors that its user can do something about become part of the outcome."""
    with few_collections():
        try:
            return Outcome(work(task))
        except (MsprobeException, OSError) as error:
            return Outcome(error=error)
        except MemoryError:
            return Outcome(error=MsprobeException(f"there is not enough memory for it{FEWER}"))


def attempt_elsewhere(work: Callable[[Task], Result], task: Task) -> Outcome[Result]:
    """Do one task in a process that has no user of its own: what it logs becomes part of the outcome too."""
    with log.collected() as lines:
        outcome = attempt(work, task)
    return Outcome(outcome.value, outcome.error, lines)


FEWER = "; compare fewer at a time with --jobs, or on a machine with more memory."


@contextmanager
def few_collections() -> Iterator[None]:
    """No search for garbage meanwhile: a comparison keeps what it makes, and searching took a quarter of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def here(work: Callable[[Task], Result], tasks: Sequence[Task], done: Done | None = None) -> Outcomes[Result]:
    """Do `tasks` one after the other in this process, each when its outcome is asked for."""
    for task in tasks:
        outcome = attempt(work, task)
        if done is not None:
            done()
        yield outcome


def finished(
    tasks: Sequence[Task], outcomes: Outcomes[Result], may_fail: tuple[type[Exception], ...]
) -> Generator[tuple[Task, Outcome[Result]], None, None]:
    """Each task with what became of it, in order; what it logged in another process is shown before.

    Args:
        tasks: all of them.
        outcomes: what becomes of them, in the same order. They are closed at the end, and at an error.
        may_fail: the errors that do not end the other tasks. The error of a single task is raised.

    Raises:
        Exception: another error of a task.
    """
    with closing(outcomes):
        for task, outcome in zip(tasks, outcomes):
            log.show(outcome.logged)
            if outcome.value is None and not (len(tasks) > 1 and isinstance(outcome.error, may_fail)):
                raise outcome.error or AssertionError(f"{task} has neither a result nor an error")
            yield task, outcome


def results(tasks: Sequence[Task], outcomes: Outcomes[Result]) -> Generator[Result, None, None]:
    """The result of each task, in order, where none may fail; otherwise as `finished`.

    Raises:
        Exception: the error of a task.
    """
    with closing(finished(tasks, outcomes, ())) as found:
        for _, outcome in found:
            assert outcome.value is not None
            yield outcome.value


# --- the memory of this machine

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The limit of a container, in each version of the kernel's interface."""
_UNKNOWN = 8 << 30
"""Bytes that are taken for a machine which does not say its own."""


def machine_bytes() -> int:
    """Bytes that this machine has, or that its container may use."""
    found = [_UNKNOWN]
    if hasattr(os, "sysconf"):
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        # There is none outside of a container, and "max" where it is not limited.
        with suppress(OSError, ValueError), open(path, encoding="ascii") as stream:
            found.append(int(stream.read()))
    return min(found)
