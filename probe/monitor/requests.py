"""A request to a running monitor: a file in the folder of a rank, which the monitor removes when it has seen it."""

from __future__ import annotations

import os

from probe.common import files
from probe.common.errors import FileCheckException
from probe.monitor.reading.locating import locate

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
