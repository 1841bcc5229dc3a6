"""The folder of one step and rank: ``step<S>/rank<R>`` or ``step<S>/proc<PID>``, with its journal and files."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Iterator

from probe.common import clock, files, log
from probe.common.config.config import Config
from probe.common.dump import json_files, processes
from probe.common.dump.journal import Header, JournalWriter
from probe.common.dump.layout import (
    JOURNAL_FILE,
    MADE_FILES,
    PROCESS_FILE,
    RECORD_FILES,
    TENSOR_FOLDER,
    processes_in,
    ranks_in,
    step_folder,
    steps_in,
)
from probe.common.environment.gathered import command
from probe.common.log import ERROR_LOG, ErrorLog

_MOST_EARLIER = 100
"""Folders of processes among which those of an earlier run are looked for."""


class DumpFolder:
    """Creates the folder and the files as they are before the first record.

    Args:
        config: Task, level and dump path.
        step: The step's number.
        process: ``rank<R>`` or ``proc<PID>``.
        framework: Its name for the head of the files.
        with_tensors: True if tensors may be saved.

    Raises:
        FileCheckException: the folder cannot be created, or is a link.
    """

    def __init__(self, config: Config, step: int, process: str, framework: str, with_tensors: bool) -> None:
        self.relative = os.path.join(step_folder(step), process)
        # Absolute, because the program may change its directory; the head of dump.json has the path as it was given.
        root = os.path.abspath(config.dump_path)
        self.step_path = os.path.join(root, step_folder(step))
        self.path = os.path.join(root, self.relative)
        self.tensor_folder = os.path.join(self.path, TENSOR_FOLDER)
        files.make_folder(root)
        files.make_folder(self.step_path)
        self.is_new = new = files.make_folder(self.path)
        """True if there was no such folder before."""
        if with_tensors:
            files.make_folder(self.tensor_folder)
        data_folder = os.path.join(config.dump_path, self.relative, TENSOR_FOLDER) if with_tensors else None
        self.header = Header(config.task, config.level, framework, data_folder, config.extra_info)
        if not new:
            self._keep_journal_of_dead_run()
        try:
            json_files.skeleton(self.path, self.header, new)
            self.journal = JournalWriter(os.path.join(self.path, JOURNAL_FILE), self.header)
        except BaseException:
            # Files without a record would look like a step in which nothing was called.
            if new:
                remove(self.path, True)
            raise
        # No call between the journal, which is open now, and the log of what fails.
        self._written = self.journal.frame_writer.frames
        self._errors = ErrorLog(self.path)
        self._missing: set[str] = set()
        """The records and tensor files that could not be written, or not completely."""
        self._reason = ""
        """The first failure."""
        self._is_unmade = False
        """True if the json files could not be made from the journal."""
        try:
            processes.write(self.path, command)
        except Exception as error:
            self.log_error(PROCESS_FILE, error)
        try:
            if not new:
                files.remove_left(self.path, MADE_FILES)
        except Exception as error:
            self.log_error("what a dead run left", error)

    def _keep_journal_of_dead_run(self) -> None:
        journal = os.path.join(self.path, JOURNAL_FILE)
        if files.in_use(journal):
            raise OSError(errno.EBUSY, "another process is collecting into this folder", self.path)
        if os.path.lexists(journal):
            kept = next(name for i in itertools.count(1) if not os.path.lexists(name := f"{journal}.{i}"))
            os.replace(journal, kept)
            log.warning(
                f"a run that died left a journal here; it is kept as {kept}, see docs/explanations/reliability.md."
            )
        elif os.path.exists(os.path.join(self.path, self.header.file_name)):
            log.warning(f"{self.path} holds an earlier dump; its files of the same names are overwritten.")

    def rename(self, process: str) -> None:
        """The process has got a rank: move ``proc<PID>`` to ``rank<R>`` and go on writing there."""
        target = os.path.join(self.step_path, process)
        if os.path.lexists(target):
            log.warning(f"{target} exists already; this run stays in {self.path}.")
            return
        try:
            os.replace(self.path, target)
        except OSError as error:
            log.warning(f"{self.path} cannot be renamed ({error}); this run stays there.")
            return
        log.info(f"This process has a rank now: its folder {self.path} is renamed to {target}.")
        self.path = target
        self.tensor_folder = os.path.join(target, TENSOR_FOLDER)

    def write_files(self) -> bool:
        """Make the json files from the journal, unless nothing is new; whether anything was."""
        if self.journal.frames == self._written:
            return False
        self._is_unmade = True
        json_files.write(self.path)
        self._is_unmade = False
        self._written = self.journal.frames
        return True

    @property
    def record_file(self) -> str:
        """The path of the file that has, or will have, the records."""
        return os.path.join(self.path, self.header.file_name)

    @property
    def is_recoverable(self) -> bool:
        """True if the json files could not be made, and the journal is there to make them from."""
        return self._is_unmade and os.path.exists(os.path.join(self.path, JOURNAL_FILE))

    @property
    def failed(self) -> bool:
        """True if something could not be recorded, which was logged."""
        return bool(self._errors)

    @property
    def loss(self) -> str:
        """A sentence on the part of the step that is missing in its files, and the reason; empty if nothing is missing.

        Example:
            ``28 records or tensor files are missing or incomplete (No space left on device)``
        """
        number = len(self._missing)
        several = f"{number} records or tensor files are missing or incomplete"
        parts = [several if number > 1 else "1 record or tensor file is missing or incomplete"] if number else []
        if self._is_unmade:
            parts.append(f"{self.header.file_name} and the files next to it are not made")
        return f"{', '.join(parts)} ({self._reason})" if parts else ""

    def close(self) -> None:
        """The step is over; if the files are complete, remove the journal they were made from."""
        self.journal.close()
        if self._written == self.journal.frames:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, JOURNAL_FILE))

    def log_error(self, name: str, error: BaseException, report: bool = True) -> None:
        """Add a failure of the tool to the folder's log, and report each kind to the user once if `report`."""
        kind = f"{type(error).__name__}: {error}"
        self._reason = self._reason or (getattr(error, "strerror", None) or kind)
        if report:
            self._missing.add(name)
        is_first, unwritten = self._errors.add(name, error)
        where = f"Details: {ERROR_LOG}"
        if unwritten:
            where = f"{ERROR_LOG} cannot be written ({unwritten}); the end of the run tells how much is missing"
        if is_first and report:
            log.error(f"{name} could not be recorded completely ({kind}); the training goes on. {where}.")


def reason(error: BaseException) -> str:
    """The reason of an error of the system without a path, which is another one for each step."""
    return str(getattr(error, "strerror", None) or getattr(error.__cause__, "strerror", None) or error)


def remove(path: str, is_new: bool) -> None:
    """Take away the folder of a step and process, and that of the step if no other process has one there.

    Args:
        path: The folder, whose journal is closed.
        is_new: True if all in it is of this run; without it the files of other runs stay, such as kept journals.
    """
    if is_new:
        shutil.rmtree(path, ignore_errors=True)
    else:
        for name in (JOURNAL_FILE, PROCESS_FILE, *MADE_FILES):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(path, name))
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


def earlier_run(folder: DumpFolder, begin: float) -> str:
    """A sentence on the files of a run that ended before `begin`, next to the new `folder`; empty if there are none.

    The folder itself is no matter: that its files are overwritten is said when it is made.

    Example:
        ``step0/proc17 of 2026-11-23 10:15, and 3 more``
    """
    root = os.path.dirname(folder.step_path)
    run = processes.present()
    found: list[tuple[float, str]] = []
    for name in itertools.islice(_process_folders(root), _MOST_EARLIER):
        path = os.path.join(root, name)
        changed = _changed(path)
        # Other ranks of this run may have begun before it, and hold their journals.
        if path == folder.path or not 0 < changed < begin or files.in_use(os.path.join(path, JOURNAL_FILE)):
            continue
        if run is not None and (other := processes.read(path)) is not None and other.run == run.run:
            continue  # a process that this run has started, and that has ended
        found.append((changed, name))
    if not found:
        return ""
    latest, name = max(found)
    more = "" if len(found) == 1 else f", and {len(found) - 1} more"
    return f"{name} of {clock.stamp('%Y-%m-%d %H:%M', latest)}{more}"


def _process_folders(root: str) -> Iterator[str]:
    for step in steps_in(root):
        with contextlib.suppress(OSError):
            path = os.path.join(root, step)
            yield from (os.path.join(step, process) for process in (*ranks_in(path), *processes_in(path)))


def _changed(folder: str) -> float:
    """The time at which the records in `folder` were last written, in seconds; 0 if there are none."""
    times = [0.0]
    for name in (*RECORD_FILES, JOURNAL_FILE):
        with contextlib.suppress(OSError):
            times.append(os.stat(os.path.join(folder, name)).st_mtime)
    return max(times)
