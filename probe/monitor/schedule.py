"""The steps that a monitor collects: start, interval, number of times, and the file that turns it on and off."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

from probe.common import files, log
from probe.common.errors import FileCheckException
from probe.common.files import replacing
from probe.monitor.csv_rows import locate


class Schedule:
    """Collects each step from `start` on at which (step - start) is a multiple of `interval`, `times` times.

    Args:
        start: The first collected step.
        interval: In steps.
        times: The number of steps that are collected.
        stop: The step before which it ends; ``None`` for no end.
        finished: Called once, when `times` steps were collected.
    """

    def __init__(
        self, start: int, interval: int, times: int, stop: int | None = None, finished: Callable[[], None] | None = None
    ) -> None:
        self._start = start
        self._interval = interval
        self._left = times
        self._stop = stop
        self._finished = finished

    @property
    def is_left(self) -> bool:
        """True if steps are still to be collected."""
        return self._left > 0

    def wants(self, step: int) -> bool:
        """True if the step is collected."""
        if self._left <= 0 or step < self._start or (self._stop is not None and step >= self._stop):
            return False
        return (step - self._start) % self._interval == 0

    def collected(self, step: int) -> None:
        """Count a step that was collected."""
        self._left -= 1
        if self._left == 0:
            log.info("Finish monitor")
            if self._finished is not None:
                self._finished()


_LOOKS_EVERY = 1.0
"""Seconds between two looks at the configuration file."""


class WatchedFile:
    """A configuration file that may change; it is looked at once a second at most.

    Args:
        path: The file.
        changed: Called after it was written again.
    """

    def __init__(self, path: str, changed: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._changed = changed
        self._clock = clock
        self._looked = clock()
        self._time = self._modified()

    def look(self) -> None:
        """See if the file has changed since the last look."""
        now = self._clock()
        if now - self._looked < _LOOKS_EVERY:
            return
        self._looked = now
        modified = self._modified()
        if modified != self._time:
            self._time = modified
            self._changed()

    def switch_off(self, key: str) -> None:
        """Write ``false`` for a key that is true. The file is replaced as a whole, and has not changed for `look`.

        Raises:
            OSError: it cannot be read or written.
        """
        with open(self._path, encoding="utf-8") as stream:
            before = stream.read()
        after = switched_off(before, key)
        if after != before:
            with replacing(self._path) as target:
                target.write(after.encode())
        self._time = self._modified()

    def _modified(self) -> float:
        try:
            return os.stat(self._path).st_mtime
        except OSError:
            return 0.0


def switched_off(text: str, key: str) -> str:
    """The text of a JSON file in which ``"key": true`` became false; the same text where it is not true.

    Example:
        >>> switched_off('{"a": 1, "dynamic_on" : true}', "dynamic_on")
        '{"a": 1, "dynamic_on" : false}'
    """
    return re.sub(rf'("{re.escape(key)}"\s*:\s*)true\b', r"\1false", text, count=1)


# --- requests


REQUEST = "dump_next_step"


def request_dump(path: str, ranks: tuple[int, ...] = ()) -> list[str]:
    """Ask the running job of a folder to dump its next step.

    Args:
        path: The output folder of the monitor.
        ranks: The ranks that are asked; all by default.

    Returns:
        The files that were written.

    Raises:
        FileCheckException: the folder holds no rows of such a rank, or cannot be written.
    """
    folders = [each for each in locate(path).folders if not ranks or each.rank in ranks]
    if not folders:
        raise FileCheckException(f"{path} has no rows of rank {', '.join(map(str, ranks))}.")
    found = []
    for folder in folders:
        target = os.path.join(folder.path, REQUEST)
        with files.replacing(target) as stream:
            stream.write(b"")
        found.append(target)
    return found


def take_request(folder: str) -> bool:
    """True once for each request; costs one look at the folder."""
    try:
        os.unlink(os.path.join(folder, REQUEST))
    except OSError:
        return False
    return True
