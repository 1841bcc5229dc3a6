"""The time in the names of files that are written, which no two of one folder share."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator
from datetime import datetime, timedelta

from probe.common import files


@contextlib.contextmanager
def stamped(folder: str) -> Iterator[datetime]:
    """The time for the names of the files that are written to `folder` inside of the context.

    It is now, or the next second of which nothing is there: whatever else writes to this folder at the same time gets
    another one, and nothing is overwritten.

    Raises:
        OSError: the folder cannot be written to.
    """
    files.make_folder(folder)
    when = datetime.now().replace(microsecond=0)
    while not (claim := _claim(folder, when)):
        when += timedelta(seconds=1)
    try:
        yield when
    finally:
        # Behind the files: whoever may claim it now sees them.
        os.unlink(claim)


def in_words(when: datetime) -> str:
    """The time as names of files have it."""
    return f"{when:%Y%m%d%H%M%S}"


def _claim(folder: str, when: datetime) -> str:
    """The file that keeps others from taking this time; empty where it is taken."""
    path = os.path.join(folder, f".graph_{in_words(when)}.claim")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | files.NO_FOLLOW, files.FILE_MODE))
    except FileExistsError:
        return ""
    escaped = glob.escape(folder)
    if any(glob.glob(os.path.join(escaped, *within, f"*_{in_words(when)}*")) for within in ([], ["run*"])):
        os.unlink(path)
        return ""
    return path
