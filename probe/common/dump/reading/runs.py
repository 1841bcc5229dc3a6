"""The one locator of dumps: every command, and Python, finds by it what a path holds.

A path is a file of records, a journal, the folder of a process, of a step, or of a run, which has folders of steps, or
the pack of a run, which is unpacked into a temporary folder; a run of MindSpore that is partly a graph has them in two
folders, ``graph`` and ``pynative``. Of the processes in the folder of a step those of the run that wrote last belong
together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Optional

import msgspec

from probe.common import log
from probe.common.dump import processes
from probe.common.dump.layout import (
    CONSTRUCT_FILE,
    DEBUG_FILE,
    DUMP_FILE,
    JOURNAL_FILE,
    MODES,
    PROCESS_FILE,
    STACK_FILE,
    folder_of,
    holds_records,
    is_environment_file,
    is_without_rank,
    process_and_mode,
    processes_in,
    ranks_in,
    step_and_rank,
    steps_in,
)
from probe.common.dump.processes import RunProcess
from probe.common.dump.reading.unpacked import located
from probe.common.errors import FileCheckException
from probe.common.log import ERROR_LOG

ALLOWED = (
    f"{DUMP_FILE}, {DEBUG_FILE}, {JOURNAL_FILE}, the folder of a process or a step, a folder of steps, or a pack of "
    "a run"
)
"""The allowed kinds of a path to dumps, for messages."""
_WITHOUT_RECORDS = (STACK_FILE, CONSTRUCT_FILE, PROCESS_FILE, ERROR_LOG)
"""Files beside those of records, which are easily given instead."""
_MOST_NAMED = 4
"""Folders in a message; a guess."""


class DumpLocation(msgspec.Struct, frozen=True):
    """The location of the dump of one process and one step, and what the names of its folders say of it."""

    path: str
    """A file, or the folder of the process."""
    folder: str
    """The folder of the process."""
    name: str
    """The name of the folder: ``rank0`` or ``proc123``."""
    step: Optional[int] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """``None`` where no folder says so."""
    rank: Optional[int] = None  # noqa: UP045
    """``None`` of a process without a rank, or where no folder says so."""
    process: str = ""
    """``proc123`` of a process without a rank."""
    mode: str = ""
    """``graph`` or ``pynative`` of MindSpore."""

    @classmethod
    def of(cls, path: str) -> DumpLocation:
        """The location of a file of records, or of the folder of a process."""
        folder = folder_of(path)
        step, rank = step_and_rank(os.path.join(folder, DUMP_FILE))
        process, mode = process_and_mode(os.path.join(folder, DUMP_FILE))
        return cls(path, folder, os.path.basename(os.path.abspath(folder)), step, rank, process or "", mode or "")

    @property
    def step_folder(self) -> str:
        """The folder of its step."""
        folder = self.folder.rstrip(os.sep)
        if os.path.basename(folder) in (os.curdir, os.pardir):
            folder = os.path.abspath(folder)
        return os.path.dirname(folder) or os.curdir


class FoundDumps(msgspec.Struct, frozen=True):
    """The dumps that a path holds."""

    path: str
    """The path that was given; of a pack the folder into which it was unpacked."""
    dumps: list[DumpLocation]
    """Step by step, and in each rank by rank; processes without a rank follow in the order of their start."""
    uncertain: list[DumpLocation]
    """The dumps of which nobody can say if they are of the same run; they are not read."""
    empty: list[DumpLocation]
    """The folders of ranks that hold no records, although those of other ranks of the step do."""
    left_out: list[str]
    """A sentence for each step of which processes are not read."""

    @property
    def is_one(self) -> bool:
        """True if the path itself is a dump: a file, or the folder of a process."""
        return len(self.dumps) == 1 and self.dumps[0].path == self.path

    def name_of_step(self, dump: DumpLocation) -> str:
        """``step0`` or ``graph/step0`` where the path is a folder of steps; empty where it is that of a step."""
        # They are found by joining names to the path.
        return dump.step_folder[len(self.path) :].strip(os.sep).replace(os.sep, "/")


def find_dumps(path: str) -> FoundDumps:
    """The dumps at a path, and what is not read of it.

    Args:
        path: a file of records or a journal, the folder of a process or of a step, a folder of steps, or a pack.

    Raises:
        FileCheckException: it does not exist, is no file of records, or holds no dump.
        OSError: a folder cannot be read.
    """
    path = located(path)
    check_exists(path)
    if not os.path.isdir(path):
        _check_file(path)
        return FoundDumps(path, [DumpLocation.of(path)], [], [], [])
    if holds_records(path):
        return FoundDumps(path, [DumpLocation.of(path)], [], [], [])
    steps = [found for step in _steps_below(path) if (found := processes_of(step)).folders]
    if not steps:
        steps = [found for found in (processes_of(path),) if found.folders]
    if not steps:
        raise FileCheckException(f"{path} holds no dump; give {ALLOWED}.{_inside(path)}")
    return FoundDumps(
        path,
        [DumpLocation.of(each.path) for step in steps for each in step.folders],
        [DumpLocation.of(each.path) for step in steps for each in step.unknown],
        [DumpLocation.of(each.path) for step in steps for each in step.empty],
        [text for step in steps for text in step.left_out],
    )


def dumps_in(path: str) -> list[DumpLocation]:
    """The dumps at a path, as `find_dumps` finds them; what is not read is logged.

    Raises:
        FileCheckException: there is none.
        OSError: a folder cannot be read.
    """
    found = find_dumps(path)
    warn_of_left_out(found)
    return found.dumps


def warn_of_left_out(*found: FoundDumps) -> None:
    """Log what is not read of paths, once where these are the same."""
    for text in dict.fromkeys(text for each in found for text in each.left_out):
        log.warning(text)


def only_dump_in(path: str, several: str = "") -> DumpLocation:
    """The one dump at a path.

    Args:
        several: what else can be done with several dumps, for the message.

    Raises:
        FileCheckException: there is none, or there are several.
        OSError: a folder cannot be read.
    """
    first, *others = dumps_in(path)
    if others:
        hint = f", or {several}" if several else ""
        raise FileCheckException(
            f"{path} holds {1 + len(others)} dumps; give the folder of one, such as {first.path}{hint}."
        )
    return first


def check_exists(path: str) -> None:
    """Refuse a path at which nothing is; an empty one is often a variable of a shell that is not set.

    Raises:
        FileCheckException: nothing is there.
    """
    if not path:
        raise FileCheckException(f"the path is empty; give {ALLOWED}.")
    if not os.path.exists(path):
        raise FileCheckException(f"{path} does not exist; give {ALLOWED}.")


def _check_file(path: str) -> None:
    if not os.path.isfile(path):
        raise FileCheckException(f"{path} is neither a file nor a folder; give {ALLOWED}.")
    if os.path.basename(path) in _WITHOUT_RECORDS or is_environment_file(os.path.basename(path)):
        raise FileCheckException(f"{path} holds no records; give {ALLOWED}.")


def _inside(path: str) -> str:
    """The contents of a folder without a dump, as a sentence."""
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    return f" It holds {', '.join(names[:_MOST_NAMED])}{' ...' if len(names) > _MOST_NAMED else ''}." if names else ""


def _steps_below(path: str) -> Iterator[str]:
    """The folders of the steps of a run, step by step."""
    found = []
    for mode in ("", *MODES):
        folder = os.path.join(path, mode) if mode else path
        if os.path.isdir(folder):
            found += [(int(name.removeprefix("step")), os.path.join(folder, name)) for name in steps_in(folder)]
    # Sorting keeps the order of the modes within a step.
    return (step for _, step in sorted(found, key=lambda each: each[0]))


# --- which processes of a step belong together


class ProcessFolder(msgspec.Struct, frozen=True):
    """The folder of one process in that of a step."""

    path: str
    process: Optional[RunProcess]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The process; ``None`` if nothing says which one."""

    @property
    def name(self) -> str:
        """``rank0`` or ``proc123``."""
        return os.path.basename(self.path)

    @property
    def has_rank(self) -> bool:
        return not is_without_rank(self.name)


class StepProcesses(msgspec.Struct, frozen=True):
    """The processes of a step."""

    step: str
    """The folder of the step."""
    folders: list[ProcessFolder]
    """The folders of the run that wrote last: by rank, then in the order in which they were started."""
    earlier: list[ProcessFolder]
    """The folders that are known to be of another run."""
    unknown: list[ProcessFolder]
    """The folders of which nobody can say if they are of another run."""
    empty: list[ProcessFolder]
    """The folders of ranks that hold no records, where those of other ranks do."""

    @property
    def left_out(self) -> list[str]:
        """A sentence for each reason why processes are not read."""
        chosen = [each.name for each in self.folders]
        found = []
        if self.earlier:
            others = _names([each.name for each in self.earlier])
            found.append(
                f"{self.step} also holds another run ({others}), which is not read; the last run is {_names(chosen)}."
            )
        if self.unknown and not self.folders[0].has_rank:
            count = len(self.folders) + len(self.unknown)
            found.append(f"{self.step} holds {count} proc folders; {chosen[0]}, which was written last, is read.")
        elif self.unknown:
            others = _names([each.name for each in self.unknown])
            found.append(f"{self.step} also holds {others}, perhaps of another run, which is not read.")
        if self.empty:
            found.append(f"{self.step}: no records were found of {_names([each.name for each in self.empty])}.")
        return found


def processes_of(step: str) -> StepProcesses:
    """The processes in the folder of a step that hold records.

    Ranks belong together, since a launcher may begin a run for each of them. They win over processes without a rank,
    unless these are known to be of a run that wrote later. If nothing says which run processes without a rank belong
    to, the one that was written last wins.
    """
    names = ranks_in(step)
    paths = [os.path.join(step, name) for name in (*names, *processes_in(step))]
    found = [ProcessFolder(path, processes.read(path)) for path in paths if holds_records(path)]
    ranks = [each for each in found if each.has_rank]
    runs: dict[str, list[ProcessFolder]] = {}
    for each in found[len(ranks) :]:
        runs.setdefault(each.path if each.process is None else each.process.run, []).append(each)
    if ranks:
        # A process of the same run that has no rank.
        for run in {each.process.run for each in ranks if each.process is not None}:
            ranks += runs.pop(run, [])
        runs[""] = ranks
    if not runs:
        return StepProcesses(step, [], [], [], [])
    newest = _newest(runs)
    others = [each for run, folders in runs.items() if run != newest for each in folders]
    is_known = runs[newest][0].process is not None
    return StepProcesses(
        step,
        _in_order(runs[newest]),
        [each for each in others if is_known or each.process is not None],
        [each for each in others if not is_known and each.process is None],
        [ProcessFolder(path, None) for path in paths[: len(names)] if not newest and not holds_records(path)],
    )


def _newest(runs: dict[str, list[ProcessFolder]]) -> str:
    """The key of the run that wrote last, of those of which it counts; that of ranks is empty."""
    if "" in runs:
        all_say = all(each.process is not None for each in runs[""])
        runs = {run: of for run, of in runs.items() if not run or (all_say and of[0].process is not None)}
    return max(runs, key=lambda run: max(last_write(each.path) for each in runs[run]))


def folders_of_run(path: str, above: RunProcess) -> Iterator[tuple[int, ProcessFolder]]:
    """The folders in the steps of `path` that processes below `above` wrote, each with its step."""
    if not os.path.isdir(path):
        return
    for name in steps_in(path):
        step = os.path.join(path, name)
        for folder in (os.path.join(step, each) for each in (*ranks_in(step), *processes_in(step))):
            process = processes.read(folder)
            if process is not None and process.is_below(above) and holds_records(folder):
                yield int(name.removeprefix("step")), ProcessFolder(folder, process)


def _in_order(folders: list[ProcessFolder]) -> list[ProcessFolder]:
    """Ranks by their numbers, as they come, and then the other processes as they were started."""
    return sorted(folders, key=lambda each: () if each.has_rank or each.process is None else (0, *each.process.order))


def last_write(folder: str) -> float:
    """The time at which a file in the folder of a process was written last, in seconds since the epoch."""
    # Of a link the time of the link itself, for it may lead nowhere.
    return max((entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(folder)), default=0.0)


def _names(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
