"""A thread that writes what a training hands over, so that the training does not wait for the disk."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from typing import Callable

Job = Callable[[], None]

MOST_WAITING = 256 << 20
"""Bytes that may wait for the disk. A guess: some 500 sets of log-probabilities of 128 responses of 1,000 tokens."""
PATIENCE = 60.0
"""Seconds that a training waits for a disk on which nothing moves. A guess: what a busy network file system needs."""


class DiskTooSlow(Exception):
    """Nothing was written for so long that values are left out."""


class Writer:
    """Runs jobs one after the other, in a thread that starts with the first one.

    If too many bytes wait, `put` waits for the disk. If nothing is finished for `patience` seconds, the job is left
    out, and no further `put` waits until the disk moves again. A process that was forked has a thread of its own.

    Args:
        failed: A function that is told the name of a job and the error that it raised; it raises nothing.
        most: Bytes that may wait.
        patience: Seconds.
    """

    def __init__(
        self, failed: Callable[[str, Exception], None], most: int = MOST_WAITING, patience: float = PATIENCE
    ) -> None:
        self._failed = failed
        self._most = most
        self._patience = patience
        self._begin()
        atexit.register(self.flush)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._jobs: deque[tuple[str, Job, int]] = deque()
        self._size = 0
        self._unfinished = 0
        self._finished = 0
        self._is_stuck = False
        self._thread: threading.Thread | None = None

    def put(self, name: str, job: Job, size: int) -> bool:
        """Hand over a job that holds `size` bytes; false if the disk is too slow for it, which is reported."""
        if self._process != os.getpid():
            self._begin()  # the other process writes what it has
        with self._changed:
            has_room = self._wait(lambda: not self._unfinished or self._size + size <= self._most)
            if has_room:
                self._jobs.append((name, job, size))
                self._size += size
                self._unfinished += 1
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="SingleSave", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
        if not has_room:
            text = f"{self._size} bytes wait, and no file was finished within {self._patience:g} s"
            self._failed(name, DiskTooSlow(text))
        return has_room

    def flush(self) -> bool:
        """Wait until everything is written; false if the disk has stopped."""
        if self._process != os.getpid():
            return True
        with self._changed:
            self._is_stuck = False
            return self._wait(lambda: not self._unfinished)

    def close(self) -> None:
        """Write everything; nothing is handed over afterwards."""
        self.flush()
        atexit.unregister(self.flush)

    def _wait(self, is_reached: Callable[[], bool]) -> bool:
        """Wait for as long as jobs are finished now and then."""
        seen, last = self._finished, time.monotonic()
        while not is_reached():
            if self._finished != seen:
                seen, last = self._finished, time.monotonic()
            left = last + self._patience - time.monotonic()
            if left <= 0 or self._is_stuck:
                self._is_stuck = True
                return False
            self._changed.wait(left)
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait()
                name, job, size = self._jobs.popleft()
            try:
                job()
            except Exception as error:
                self._failed(name, error)
            # Its values are given back before others are let in.
            del job
            with self._changed:
                self._size -= size
                self._unfinished -= 1
                self._finished += 1
                self._is_stuck = False
                self._changed.notify_all()
