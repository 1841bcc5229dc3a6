"""The folder of one run and rank."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence

from probe.common import clock
from probe.common.files import make_folder

VARIABLE = "MONITOR_OUTPUT_DIR"
DEFAULT = "./monitor_output"
TIME = "%b%d_%H-%M-%S"
FOLDER = re.compile(r"(?P<time>[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2})-rank(?P<rank>\d+)-(?P<run>[0-9a-f]+)")
"""The name of the folder of a rank."""
_JOB = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
"""Variables that are the same for all ranks of a job."""


def base() -> str:
    """The folder that holds the runs."""
    return os.environ.get(VARIABLE) or DEFAULT


def run_folder(above: str, rank: int, continues: Sequence[str] = ()) -> str:
    """Make the folder of this run, such as ``Nov27_14-20-00-rank0-1a2b3c4d``.

    Args:
        above: The folder that holds the runs.
        rank: The rank of this process.
        continues: Two times: a folder of this rank whose time lies between them is used again.
    """
    if continues:
        found = [
            name
            for name in sorted(os.listdir(above) if os.path.isdir(above) else ())
            if (match := FOLDER.fullmatch(name))
            and int(match["rank"]) == rank
            and moment(continues[0]) <= moment(match["time"]) <= moment(continues[1])
        ]
        if found:
            return os.path.join(above, found[-1])
    path = os.path.join(above, f"{clock.stamp(TIME)}-rank{rank}-{_run()}")
    make_folder(path)
    return path


def moment(text: str) -> tuple[int, ...]:
    """The time in the name of a folder, to be compared; empty if the text is none."""
    try:
        # A leap year, so that Feb29 is a day.
        return tuple(time.strptime(f"2024 {text}", f"%Y {TIME}"))
    except (ValueError, TypeError):
        return ()


def _run() -> str:
    """The number of the run, the same for all of its ranks where the launcher names the job."""
    job = [os.environ[name] for name in _JOB if name in os.environ]
    if len(job) > 1:
        return hashlib.sha256("\0".join(job).encode()).hexdigest()[:8]
    return os.urandom(4).hex()
