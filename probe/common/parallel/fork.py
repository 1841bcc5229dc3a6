"""A fork of this process that takes a share of its work, so that whatever becomes of it costs time and nothing else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


class CannotFork(Exception):
    """The system does not give what it takes."""


def can_fork() -> bool:
    """True if nothing speaks against it: a fork takes over the locks of other threads in whatever state they are."""
    try:
        # Elsewhere it is not known how many threads there are.
        return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


class SharedCounter:
    """Counts up to `total` for several processes together.

    Raises:
        CannotFork: there is no pipe, or none that holds so many.
    """

    def __init__(self, total: int) -> None:
        try:
            self._pipe, pipe = os.pipe()
        except OSError as error:
            raise CannotFork from error
        # Who reads from a pipe takes it away from all others.
        numbers = b"".join(number.to_bytes(4, "little") for number in range(1, total + 1))
        os.set_blocking(pipe, False)
        # A user who has very many pipes gets short ones.
        written = os.write(pipe, numbers)
        os.close(pipe)
        if written < len(numbers):
            os.close(self._pipe)
            raise CannotFork

    def take(self) -> int | None:
        """The next number, which nobody else gets; ``None`` when there is none left."""
        number = os.read(self._pipe, 4)
        return int.from_bytes(number, "little") if number else None

    def __enter__(self) -> SharedCounter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._pipe)


class Fork:
    """A process that does one thing."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe = pipe
        self._running = True

    def answer(self) -> bytes | None:
        """What it has to say, once it is done; ``None`` if it died or could not do it."""
        with os.fdopen(os.dup(self._pipe), "rb") as pipe:
            answer = pipe.read()
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:
            # Who started us lets children go unseen, so that nobody knows how this one ended.
            status = -1
        self._running = False
        return answer if status == 0 else None

    def end(self) -> None:
        """Let nothing of it stay."""
        if self._running:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
        os.close(self._pipe)


@contextmanager
def fork(work: Callable[[], bytes]) -> Iterator[Fork]:
    """A fork of this process that does `work`; it is gone when the context ends.

    Raises:
        CannotFork: there is none.
    """
    try:
        pipe, theirs = os.pipe()
    except OSError as error:
        raise CannotFork from error
    # Ctrl-C waits until each of the two knows which one it is.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(pipe)
        os.close(theirs)
        raise CannotFork from error
    if pid == 0:
        # With an end of its own to read from, it would wait for ever to be read when the other one is killed.
        os.close(pipe)
        _do(work, theirs, before)
    os.close(theirs)
    found = Fork(pid, pipe)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield found
    finally:
        found.end()


def _do(work: Callable[[], bytes], pipe: int, signals: set[int]) -> NoReturn:
    """Do the work of the fork and end it, without what the program that called us does at its end."""
    status = 1
    try:
        # A terminal sends Ctrl-C to both; the other one sees to it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        answer = work()
        with os.fdopen(pipe, "wb") as stream:
            stream.write(answer)
        status = 0
    finally:
        os._exit(status)
