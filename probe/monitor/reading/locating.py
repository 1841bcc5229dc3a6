"""The folders of a monitor: which files are rows of which rank and family, and which of several runs is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from probe.common.errors import FileCheckException
from probe.monitor.output.folders import FOLDER

FIRST, SECOND = "TrainerMon", "TrainerMonitorV2"

_FIRST_FILE = re.compile(r"(?P<family>[A-Za-z]\w*?)_(?P<first>\d+)-\d+\.csv")
_SECOND_FILE = re.compile(r"(?P<family>[a-z]\w*?)_step(?P<first>\d+)-\d+\.csv")
_RANK_FOLDER = re.compile(r"rank_?(?P<rank>\d+)")
_DEEPEST = 4
"""Levels below the folder that is given; a monitor writes one."""


@dataclass(frozen=True)
class MonitorFile:
    """One file of rows."""

    path: str
    layout: str
    family: str
    """The family as in its name: ``actv``, or ``module`` of the second monitor."""
    first: int
    """The first step that it may hold."""


@dataclass
class RankFolder:
    """The folder of one rank."""

    path: str
    rank: int
    files: list[MonitorFile] = field(default_factory=list)
    time: str = ""
    run: str = ""


@dataclass(frozen=True)
class Located:
    """The folders of one run, and remarks on what is not read."""

    path: str
    folders: list[RankFolder]
    notes: list[str]


def file_of(path: str) -> MonitorFile | None:
    """The file of rows that a path is by its name; ``None`` if it is none."""
    name = os.path.basename(path)
    for layout, pattern in ((SECOND, _SECOND_FILE), (FIRST, _FIRST_FILE)):
        match = pattern.fullmatch(name)
        if match:
            return MonitorFile(path, layout, match["family"], int(match["first"]))
    return None


def folders_of(path: str) -> list[RankFolder]:
    """The folders with rows at or below a path, those of all runs."""
    found = []
    for folder in _walk(path, _DEEPEST):
        files = [each for entry in _entries(folder) if entry.is_file() and (each := file_of(entry.path))]
        if not files:
            continue
        name = os.path.basename(os.path.abspath(folder))
        match = FOLDER.fullmatch(name) or _RANK_FOLDER.fullmatch(name)
        parts = match.groupdict() if match else {}
        found.append(
            RankFolder(
                folder,
                int(parts.get("rank", 0)),
                sorted(files, key=lambda each: (each.first, each.family)),
                parts.get("time", ""),
                parts.get("run", ""),
            )
        )
    return found


def locate(path: str) -> Located:
    """The folders of the run at a path; of several runs the last one.

    Raises:
        FileCheckException: there is no such folder, or it holds no rows of a monitor.
    """
    if not os.path.isdir(path):
        what = "is a file" if os.path.exists(path) else "does not exist"
        raise FileCheckException(f"{path} {what}; give the output folder of a monitor, such as ./monitor_output.")
    folders = folders_of(path)
    if not folders:
        raise FileCheckException(
            f"{path} holds no rows of a monitor; expected files such as actv_0-0.csv or module_step0-0.csv in a folder "
            "for each rank."
        )
    runs = _runs(folders)
    notes = []
    if len(runs) > 1:
        left = ", ".join(_run_name(run) for run in runs[:-1][-3:])
        notes.append(f"{path} holds {len(runs)} runs; the last one is read ({_run_name(runs[-1])}), not {left}.")
    return Located(path, sorted(runs[-1], key=lambda each: each.rank), notes)


def _runs(folders: list[RankFolder]) -> list[list[RankFolder]]:
    """Folders of one run: those with one id or one parent, as long as each rank occurs once."""
    ids: dict[tuple[str, str], list[RankFolder]] = {}
    for each in folders:
        parent = os.path.dirname(os.path.abspath(each.path))
        ids.setdefault((parent, each.run), []).append(each)
    groups = sorted(ids.items(), key=lambda item: max(_age(each) for each in item[1]))
    runs: list[tuple[str, list[RankFolder]]] = []
    for (parent, run), group in groups:
        # msProbe gives each rank a random id: such folders belong together until a rank occurs again.
        if runs and run and runs[-1][0] == parent and not _share_ranks(runs[-1][1], group):
            runs[-1][1].extend(group)
        else:
            runs.append((parent, list(group)))
    return [folders for _, folders in runs]


def _share_ranks(one: list[RankFolder], other: list[RankFolder]) -> bool:
    return not {each.rank for each in one}.isdisjoint(each.rank for each in other)


def _age(folder: RankFolder) -> float:
    try:
        return min(os.stat(each.path).st_mtime for each in folder.files)
    except OSError:
        return 0.0


def _run_name(folders: list[RankFolder]) -> str:
    return os.path.basename(os.path.abspath(min(folders, key=lambda each: each.rank).path))


def _walk(path: str, depth: int) -> Iterator[str]:
    yield path
    if depth:
        for entry in _entries(path):
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, depth - 1)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda each: each.name)
    except OSError:
        return []
