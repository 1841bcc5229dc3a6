"""Tasks done in worker processes of this machine: one that dies takes its own task with it alone."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from probe.common.parallel.tasks import FEWER, Done, Outcome, Outcomes, ProcessDied, Result, Task, attempt_elsewhere

_PATIENCE_S = 5.0
"""The time that a process may take to remove what it has half written, before it is killed."""


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
            return f"its process was killed (SIGKILL), as the system does when memory runs out{FEWER}"
        return f"its process died of {name}."
    return f"its process ended with status {status} before it was done."


@contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """Hide Ctrl-C from processes started here; the terminal sends it to all, and this one gets it afterwards."""
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
        # Objects that the task left in reference cycles. What stays is of the modules: the next search need not look
        # at it again, which took as long as comparing two small dumps.
        gc.collect()
        gc.freeze()


def _leave(number: int, frame: Any) -> None:
    sys.exit(128 + number)
