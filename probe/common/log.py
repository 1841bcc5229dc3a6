"""Log lines for the user: ``<date> <time> (<pid>) [rank N] [LEVEL] text`` on standard output.

``MSPROBE_LOG_LEVEL`` 0, 1, 2, 3 shows debug, info (the default), warning, error and above; 4 is silent.
The standard library's ``logging`` is not used because a training script configures it for itself, and a
root logger set to DEBUG must not fill with the tool's lines, nor one set to ERROR hide where the data went.
"""

from __future__ import annotations

import os
import sys
import time

DEBUG, INFO, WARNING, ERROR, SILENT = range(5)
_LABELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_rank: int | None = None
_given: set[str] = set()


def set_rank(rank: int | None) -> None:
    """Put ``[rank N]`` into every following line; information is then shown on rank 0 only."""
    global _rank
    _rank = rank


def threshold() -> int:
    """The lowest level that is shown now."""
    text = os.environ.get("MSPROBE_LOG_LEVEL", "")
    return int(text) if text in ("0", "1", "2", "3", "4") else INFO


def _write(level: int, text: str) -> None:
    if level < threshold():
        return
    rank = "" if _rank is None else f" [rank {_rank}]"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    try:
        print(f"{stamp} ({os.getpid()}){rank} [{_LABELS[level]}] {text}", file=sys.stdout, flush=True)
    except (OSError, ValueError):
        # A closed or broken standard output is the user's affair and must not end the training.
        pass


def debug(text: str) -> None:
    _write(DEBUG, text)


def info(text: str) -> None:
    """Show `text`; when the rank is known only rank 0 speaks."""
    if not _rank:
        _write(INFO, text)


def warning(text: str, once: str | None = None) -> None:
    """Show `text`; with `once`, a short slug, only the first time for this slug."""
    if once is not None:
        if once in _given:
            return
        _given.add(once)
    _write(WARNING, text)


def error(text: str) -> None:
    _write(ERROR, text)
