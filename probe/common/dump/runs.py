"""The one rule for which dumps of a step belong together: those of all processes of the run that wrote last.

Every command reads a step by it, so that none of them shows a process that another leaves out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from probe.common.dump import processes
from probe.common.dump.layout import holds_records, is_without_rank, place_of_process, processes_in, ranks_in, steps_in
from probe.common.dump.processes import RunProcess


@dataclass(frozen=True)
class ProcessFolder:
    """The folder of one process in that of a step."""

    path: str
    process: Optional[RunProcess]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """Which process it is; ``None`` where nothing says so."""

    @property
    def name(self) -> str:
        """``rank0`` or ``proc123``."""
        return os.path.basename(self.path)

    @property
    def has_rank(self) -> bool:
        return not is_without_rank(self.name)


@dataclass(frozen=True)
class StepProcesses:
    """The processes of a step."""

    step: str
    """The folder of the step."""
    folders: list[ProcessFolder]
    """Those of the run that wrote last: by rank, then in the order in which they were started."""
    earlier: list[ProcessFolder]
    """Those that are known to be of another run."""
    unknown: list[ProcessFolder]
    """Those of which nobody can say whether they are of another run."""

    @property
    def possible(self) -> list[ProcessFolder]:
        """Those of the run, and those that may be of it."""
        if not self.unknown:
            return self.folders
        return sorted((*self.folders, *self.unknown), key=lambda each: place_of_process(each.name))

    def left_out(self, done: str = "read") -> str:
        """A sentence about the processes of other runs, which were not `done`; empty if there are none."""
        chosen = [each.name for each in self.folders]
        if self.unknown and not self.folders[0].has_rank:
            count = len(self.folders) + len(self.unknown)
            return f"{self.step} holds {count} proc folders; {chosen[0]}, which was written last, is {done}."
        if not self.earlier:
            return ""
        others = _names([each.name for each in self.earlier])
        return f"{self.step} also holds another run ({others}), which is not {done}; the last run is {_names(chosen)}."


def processes_of(step: str) -> StepProcesses:
    """The processes in the folder of a step that hold records.

    Ranks belong together, since a launcher may begin a run for each of them. They win over processes without a rank,
    unless these are known to be of a run that wrote later. If nothing says which run processes without a rank belong
    to, the one that was written last wins.
    """
    found = [
        ProcessFolder(path, processes.read(path))
        for name in (*ranks_in(step), *processes_in(step))
        if holds_records(path := os.path.join(step, name))
    ]
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
        return StepProcesses(step, [], [], [])
    newest = _newest(runs)
    others = [each for run, folders in runs.items() if run != newest for each in folders]
    is_known = runs[newest][0].process is not None
    return StepProcesses(
        step,
        _in_order(runs[newest]),
        [each for each in others if is_known or each.process is not None],
        [each for each in others if not is_known and each.process is None],
    )


def _newest(runs: dict[str, list[ProcessFolder]]) -> str:
    """The key of the run that wrote last, of those of which it counts; that of ranks is empty."""
    if "" in runs:
        all_say = all(each.process is not None for each in runs[""])
        runs = {run: of for run, of in runs.items() if not run or (all_say and of[0].process is not None)}
    return max(runs, key=lambda run: max(_last_write(each.path) for each in runs[run]))


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


def _last_write(folder: str) -> float:
    # Of a link the time of the link itself, for it may lead nowhere.
    return max((entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(folder)), default=0.0)


def _names(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
