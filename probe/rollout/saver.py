"""The work of `SingleSave`: values are copied when they are given, and written by a thread."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Callable

import numpy as np

from probe.common import files, log
from probe.common.dump.layout import process_folder, step_folder
from probe.common.log import ErrorLog
from probe.rollout import saved_folders
from probe.rollout.saved_folders import HostValues, SavingRules, Stored, Tree, arrays_of, as_json, copied, inline

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


# --- saver


class Saver:
    """Saves the values of one process below a folder. Only the constructor raises.

    Args:
        dump_path: The folder.
        host: The framework.
        rank: Gives the rank of this process, ``None`` without a process group.
        rules: The form of the files.
        most_waiting: Bytes of copies that may wait for the disk.

    Raises:
        FileCheckException: the folder cannot be made.
    """

    def __init__(
        self,
        dump_path: str,
        host: HostValues,
        rank: Callable[[], int | None],
        rules: SavingRules,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        # Absolute, because the program may change its directory.
        self.path = os.path.abspath(dump_path)
        files.make_folder(self.path)
        self._host = host
        self._rank = rank
        self._rules = rules
        self._failures = _Failures(self.path)
        self._writer = Writer(self._failures.log, most_waiting)
        self._claim = _Claim(self.path)
        self._lock = threading.Lock()
        self._step = 0
        self._counts: dict[str, int] = {}

    def save(self, values: Mapping[str, Any], micro_batch: int | None = None) -> None:
        """Save values by name.

        Args:
            values: Tensors, arrays, numbers, texts and ``None`` in any nesting.
            micro_batch: The number of the micro step; by default the number of earlier saves of this key in this step.
        """
        try:
            if not isinstance(values, Mapping):
                raise TypeError(f"save() takes a mapping of names to values, not {type(values).__name__}")
            if micro_batch is not None and (isinstance(micro_batch, bool) or not 0 <= int(micro_batch) < 1 << 63):
                raise ValueError(f"micro_batch is {micro_batch!r}; allowed: an integer from 0")
            process = self._process()
            items = list(values.items())
        except Exception as error:
            self._failures.log("save", error)
            return
        for key, value in items:
            name = "a value"
            try:
                name = str(key)
                self._save(name, value, process, micro_batch)
            except Exception as error:
                self._failures.log(name, error)

    def _save(self, key: str, value: Any, process: str, micro_batch: int | None) -> None:
        with self._lock:
            # Also of a value that fails, so that the numbers of later ones do not move.
            step, number = self._step, self._counts.get(key, 0)
            self._counts[key] = number + 1
        number = number if micro_batch is None else int(micro_batch)
        tree = self._rules.kept(key, copied(value, self._host))
        if tree is None:
            return
        stored = {array.name: self._rules.stored(array) for array in arrays_of(tree)}
        folder = os.path.join(
            self.path, saved_folders.DATA_FOLDER, saved_folders.folder_of(key, step_folder(step), process, number)
        )
        size = sum(each.values.nbytes for each in stored.values())
        self._writer.put(key, partial(_write, folder, key, tree, stored), size)

    def step(self) -> None:
        """Begin the next step."""
        with self._lock:
            self._step += 1
            self._counts = {}

    def save_config(self, configuration: Any) -> None:
        """Write a configuration, of any nesting, as ``configurations.json``."""
        try:
            tree = copied(configuration, self._host)
            content = as_json(tree, {array.name: inline(array) for array in arrays_of(tree)})
            path = os.path.join(self.path, saved_folders.CONFIGURATION_FILE)
            self._writer.put(saved_folders.CONFIGURATION_FILE, partial(_write_json, path, content), 0)
        except Exception as error:
            self._failures.log(saved_folders.CONFIGURATION_FILE, error)

    def flush(self) -> None:
        """Wait until everything is written, or the disk has stopped."""
        self._writer.flush()

    def close(self) -> None:
        """Write everything, and let another process be the first without a rank."""
        self._writer.close()
        self._claim.give_up()

    def _process(self) -> str:
        rank = self._rank()
        return process_folder(rank) if rank is not None or not self._claim.is_first() else process_folder(0)


class _Claim:
    """The first process without a rank writes as rank 0; another one that lives at the same time has its own folder."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = 0
        self._is_first = False
        self._descriptor: int | None = None

    def is_first(self) -> bool:
        """True if no other process without a rank saves to this folder."""
        if self._process != os.getpid():
            self._process = os.getpid()
            # The process from which this one was forked keeps its lock.
            self._descriptor = os.open(self._path, os.O_RDONLY)
            self._is_first = files.lock_descriptor(self._descriptor)
        return self._is_first

    def give_up(self) -> None:
        """Let another process be the first."""
        descriptor, self._descriptor, self._process = self._descriptor, None, 0
        if descriptor is not None:
            os.close(descriptor)


def _write(folder: str, key: str, tree: Tree, stored: Mapping[str, Stored]) -> None:
    files.make_folder(folder)
    entries = {}
    for name, each in stored.items():
        file = saved_folders.array_file(key, name)
        with files.replacing(os.path.join(folder, file)) as stream:
            np.save(stream, each.values, allow_pickle=False)
        entries[name] = each.entry(file)
    # The last one, so that a folder with this file is complete.
    _write_json(os.path.join(folder, saved_folders.json_file(key)), {"data": as_json(tree, entries)})


def _write_json(path: str, content: Any) -> None:
    with files.replacing(path) as stream:
        stream.write(json.dumps(content, indent=2).encode())


class _Failures:
    """Failures of saving, each kind reported once, and all of them written to a file in the folder."""

    def __init__(self, folder: str) -> None:
        self._errors = ErrorLog(folder)

    def log(self, name: str, error: Exception) -> None:
        """Report that `name` is not saved. It raises nothing."""
        try:
            is_first, unwritten = self._errors.add(name, error)
            if is_first:
                path = self._errors.path
                where = f"{path} cannot be written ({unwritten})." if unwritten else f"Details: {path}."
                kind = f"{type(error).__name__}: {error}"
                log.error(f"SingleSave: {name} is not saved ({kind}); the training goes on. {where}")
        except Exception:
            log.error("SingleSave: a value is not saved; the training goes on.")
