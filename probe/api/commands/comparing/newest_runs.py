"""The runs below a folder that were written last."""

from __future__ import annotations

import os
from collections.abc import Iterator

from probe.common.dump.layout import MODES, steps_in
from probe.common.dump.reading.runs import check_exists, find_dumps, last_write
from probe.common.errors import FileCheckException

_DEEPEST = 6
"""Levels of folders that are searched; a run is one to three levels below the folder that people give."""
_MOST_FOLDERS = 20_000
"""Folders that are searched, which takes about a second."""


def newest_runs(folder: str, count: int) -> list[str]:
    """The `count` runs below `folder` that were written last, the newest first.

    A run is a folder with step folders that hold records. Links are not followed.

    Raises:
        FileCheckException: `folder` does not exist, or holds fewer runs.
        OSError: `folder` cannot be read.
    """
    check_exists(folder)
    found = sorted(_runs_below(folder), reverse=True)
    if len(found) < count:
        names = f" ({found[0][1]})" if found else ""
        number = f"{len(found)} run{'' if len(found) == 1 else 's'}"
        raise FileCheckException(
            f"{folder} holds {number}{names}; {count} are needed. "
            "A run is a folder with step folders that hold records."
        )
    return [run for _, run in found[:count]]


def _runs_below(folder: str) -> Iterator[tuple[float, str]]:
    """The time of the last write in each run, in seconds since the epoch, and its folder."""
    start = folder.rstrip(os.sep).count(os.sep)
    for searched, (path, names, _) in enumerate(os.walk(folder)):
        if searched == _MOST_FOLDERS:
            raise FileCheckException(f"{folder} holds over {_MOST_FOLDERS:,} folders; give one closer to the runs.")
        written = _last_write(path) if _has_steps(path, names) else None
        if written is not None:
            yield written, path
        if written is not None or path.count(os.sep) - start >= _DEEPEST:
            names.clear()


def _has_steps(path: str, names: list[str]) -> bool:
    return bool(steps_in(path)) or any(steps_in(os.path.join(path, mode)) for mode in MODES if mode in names)


def _last_write(run: str) -> float | None:
    try:
        return max(last_write(dump.folder) for dump in find_dumps(run).dumps)
    except FileCheckException:
        return None
