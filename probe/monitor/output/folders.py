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
_TIME = "%b%d_%H-%M-%S"
_FOLDER = re.compile(r"(?P<time>[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2})-rank(?P<rank>\d+)-(?P<run>[0-9a-f]{8})")
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
            if (match := _FOLDER.fullmatch(name))
            and int(match["rank"]) == rank
            and _moment(continues[0]) <= _moment(match["time"]) <= _moment(continues[1])
        ]
        if found:
            return os.path.join(above, found[-1])
    path = os.path.join(above, f"{clock.stamp(_TIME)}-rank{rank}-{_run()}")
    make_folder(path)
    return path


def _moment(text: str) -> tuple[int, ...]:
    try:
        return tuple(time.strptime(text, _TIME))
    except ValueError:
        return ()


def _run() -> str:
    """The number of the run, the same for all of its ranks where the launcher names the job."""
    job = [os.environ[name] for name in _JOB if name in os.environ]
    if len(job) > 1:
        return hashlib.sha256("\0".join(job).encode()).hexdigest()[:8]
    return os.urandom(4).hex()
