"""The same work on many tasks: in this process, or in several at once.

`concurrent.futures` is not used because its pool breaks as a whole when one process is killed, and does not say whose
task that was. Here each process has a pipe of its own, so what it worked on is known, a new process takes its place,
and the others never notice.

Processes are spawned and not forked: a fork takes over threads' locks in whatever state they are, and the program that
called us may hold a framework with threads. A fork server is as fast for the few processes we need, but would outlive
the comparison.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Optional, TypeVar

from probe.common import log
from probe.common.errors import MsprobeException

Task = TypeVar("Task")
Result = TypeVar("Result")
Done = Callable[[], None]
"""Called once per task, as soon as it is finished."""
Watch = Callable[[str, int, int], None]
"""Is told what is counted, how many are done, and of how many."""

_PATIENCE_S = 5.0
"""How long a process may take to remove what it has half written, before it is killed."""


class ProcessDied(MsprobeException):
    """The process that worked on a task is gone."""

    def __init__(self, message: str, pid: int = 0) -> None:
        super().__init__(message, pid)
        self.message, self.pid = message, pid

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What became of one task."""

    value: Optional[Result] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    error: Optional[Exception] = None  # noqa: UP045
    """Why there is no value: a mistake of the user's, a file that cannot be written, or a process that died."""
    said: list[log.Line] = field(default_factory=list)
    """Log lines of another process, in their order; here they were shown at once."""


Outcomes = Generator[Outcome[Result], None, None]
"""Closing it before its end lets no process go on."""


@dataclass(frozen=True)
class Where:
    """Which processes do the work.

    Args:
        jobs: at most so many of this machine, this one if it is 1; ``None`` for as many as there are processors.
        dask: address of the scheduler of a dask cluster, which does it instead.
    """

    jobs: Optional[int] = None  # noqa: UP045
    dask: Optional[str] = None  # noqa: UP045


def run(
    where: Where, work: Callable[[Task], Result], tasks: Sequence[Task], watch: Watch | None = None
) -> Outcomes[Result]:
    """Do `tasks`; outcomes come in the order of the tasks. A single one is done in this process, unless dask is to.

    Args:
        where: which processes do it.
        work: a function at the top of a module, so that another process finds it by name.
        tasks: values that can be pickled.
        watch: is told each time a task is finished.

    Raises:
        MsprobeException: the cluster cannot be reached, or is lost.
    """
    done = None if watch is None else _counting(watch, len(tasks))
    if where.dask is not None:
        from probe.compare.on_dask import on_cluster

        return on_cluster(where.dask, work, tasks, done)
    jobs = min(where.jobs or processors(), len(tasks))
    return in_processes(work, tasks, jobs, done) if jobs > 1 else here(work, tasks, done)


def _counting(watch: Watch, total: int) -> Done:
    count = itertools.count(1)
    watch("pairs", 0, total)
    return lambda: watch("pairs", next(count), total)


def processors() -> int:
    """How many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def attempt(work: Callable[[Task], Result], task: Task) -> Outcome[Result]:
    """Do one task; errors that its user can do something about become part of the outcome."""
    with _few_collections():
        try:
            return Outcome(work(task))
        except (MsprobeException, OSError) as error:
            return Outcome(error=error)
        except MemoryError:
            return Outcome(error=MsprobeException(f"there is not enough memory for it{_FEWER}"))


def attempt_elsewhere(work: Callable[[Task], Result], task: Task) -> Outcome[Result]:
    """The same in a process that has no user of its own: what it says becomes part of the outcome too."""
    with log.collected() as lines:
        outcome = attempt(work, task)
    return Outcome(outcome.value, outcome.error, lines)


_FEWER = "; compare fewer at a time with --jobs, or on a machine with more memory."


@contextmanager
def _few_collections() -> Iterator[None]:
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


def in_processes(
    work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int, done: Done | None = None
) -> Outcomes[Result]:
    """Do `tasks` in `jobs` processes."""
    waiting = deque(range(len(tasks)))
    outcomes: dict[int, Outcome[Result]] = {}
    workers: list[_Worker] = []
    try:
        for wanted in range(len(tasks)):
            while wanted not in outcomes:
                while waiting and len(workers) < jobs:
                    workers.append(_Worker())
                    workers[-1].take(waiting[0], work, tasks[waiting.popleft()])
                ready = wait([worker.pipe for worker in workers])
                for worker in [worker for worker in workers if worker.pipe in ready]:
                    outcomes[worker.number] = worker.outcome()
                    if done is not None:
                        done()
                    if waiting and worker.alive:
                        worker.take(waiting[0], work, tasks[waiting.popleft()])
                    else:
                        workers.remove(worker)
                        worker.dismiss()
            yield outcomes.pop(wanted)
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()


class _Worker:
    """A process, and the number of the task it is on."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.number = -1
        self.alive = True
        with _interrupt_blocked():
            self.process.start()
        theirs.close()

    def take(self, number: int, work: Callable[[Any], Any], task: Any) -> None:
        self.number = number
        try:
            self.pipe.send((work, task))
        except OSError:
            pass  # It died between two tasks; reading finds out.

    def outcome(self) -> Outcome[Any]:
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join()
            return Outcome(error=ProcessDied(_how_it_died(self.process.exitcode), self.process.pid or 0))
        if isinstance(answer, str):
            raise RuntimeError(f"in the process {self.process.pid}:\n{answer}")
        assert isinstance(answer, Outcome)
        return answer

    def dismiss(self) -> None:
        """Let it end; it is idle or dead."""
        self.pipe.close()
        self.process.join()

    def stop(self) -> None:
        self.process.terminate()

    def join(self) -> None:
        self.pipe.close()
        self.process.join(_PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _how_it_died(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        if -status == signal.SIGKILL:
            return f"its process was killed (SIGKILL), as the system does when memory runs out{_FEWER}"
        return f"its process died of {name}."
    return f"its process ended with status {status} before it was done."


@contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """What is started here never sees Ctrl-C, which a terminal sends to every process; this one sees it afterwards."""
    if sys.platform == "win32":
        yield
        return
    # Started by the first process otherwise, and then it would let the signal through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection) -> None:
    """Do the tasks that come through `pipe` until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As an exception, so that half-written files are removed.
    signal.signal(signal.SIGTERM, _leave)
    while True:
        try:
            work, task = pipe.recv()
        except (EOFError, OSError):
            return
        answer: Outcome[Any] | str
        try:
            answer = attempt_elsewhere(work, task)
        except Exception:
            # A defect of ours. Not every exception can be pickled, its text can.
            answer = traceback.format_exc()
        try:
            pipe.send(answer)
        except OSError:
            return  # Nobody waits for it any more.
        del work, task, answer
        # What earlier tasks left in circles.
        gc.collect()


def _leave(number: int, frame: Any) -> None:
    sys.exit(128 + number)
