"""Log lines for the user: ``<date> <time> (<pid>) [rank N] [LEVEL] text`` on standard error.

Standard output belongs to the user's program and to the answers of commands; no log line is ever written there.

``MSPROBE_LOG_LEVEL`` 0, 1, 2, 3 shows debug, info (the default), warning, error and above; 4 is silent. Where it is
not set, ``log_level`` of the configuration decides. `quieten` raises whichever counts to warnings.
The standard library's ``logging`` is not used because a training script configures it for itself, and a
root logger set to DEBUG must not fill with the tool's lines, nor one set to ERROR hide where the data went.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Optional

from probe.common import clock, files
from probe.common.given_paths import as_given
from probe.common.harmless_text import printable

DEBUG, INFO, WARNING, ERROR, SILENT = range(5)
_VARIABLE = "MSPROBE_LOG_LEVEL"
ERROR_LOG = "dump_error_info.log"
"""The file for failures of the tool itself, which change nothing in the user's program."""
_LABELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR, "silent": SILENT}
"""The words for them in a configuration."""

_rank: int | None = None
_level = INFO
_given: set[str] = set()


class LogLine(NamedTuple):
    """A line that is not shown yet."""

    level: int
    text: str
    once: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)


_collected: ContextVar[tuple[list[LogLine], set[str]] | None] = ContextVar("_collected", default=None)


def set_rank(rank: int | None) -> None:
    """Put ``[rank N]`` into every following line; information is then shown on rank 0 only."""
    global _rank
    _rank = rank


def set_level(level: int) -> None:
    """Show lines of `level` and above from now on, unless the environment says otherwise."""
    global _level
    _level = level


def quieten() -> None:
    """Show only warnings and errors from now on, or less if less is shown already.

    It goes into the environment, so that processes which this one starts do the same.
    """
    os.environ[_VARIABLE] = str(max(threshold(), WARNING))


@contextmanager
def quiet() -> Iterator[None]:
    """Show only warnings and errors while the context lasts, as `quieten` does."""
    before = os.environ.get(_VARIABLE)
    quieten()
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before


def reset() -> None:
    """Log as at the beginning: no rank, the default level, and what is said once may be said again."""
    set_rank(None)
    set_level(INFO)
    _given.clear()


def threshold() -> int:
    """The lowest level that is shown now."""
    text = os.environ.get(_VARIABLE, "")
    if text.lower() in LEVELS:
        return LEVELS[text.lower()]
    return int(text) if text in ("0", "1", "2", "3", "4") else _level


@contextmanager
def collected() -> Iterator[list[LogLine]]:
    """Keep the lines of this thread in a list instead of showing them; `show` shows them later, or elsewhere."""
    lines: list[LogLine] = []
    token = _collected.set((lines, set()))
    try:
        yield lines
    finally:
        _collected.reset(token)


def show(lines: Iterable[LogLine]) -> None:
    """Show `lines`, which may come from another process, as if they were logged now."""
    for line in lines:
        _write(*line)


def _write(level: int, text: str, once: str | None = None) -> None:
    if level < threshold():
        return
    collecting = _collected.get()
    if once is not None:
        given = _given if collecting is None else collecting[1]
        if once in given:
            return
        given.add(once)
    if collecting is not None:
        collecting[0].append(LogLine(level, text, once))
        return
    rank = "" if _rank is None else f" [rank {_rank}]"
    stamp = clock.stamp("%Y-%m-%d %H:%M:%S")
    line = f"{stamp} ({os.getpid()}){rank} [{_LABELS[level]}] {printable(as_given(text))}"
    try:
        # With the line's end, so that it is one call of the system.
        print(line + "\n", end="", file=sys.stderr, flush=True)
    except Exception:
        # A standard error that is closed or broken, or an object of the user's in its place that lacks `flush` or
        # raises what it likes, is the user's affair and must not end the training. There is nowhere else to say it.
        pass


def debug(text: str) -> None:
    _write(DEBUG, text)


def info(text: str) -> None:
    """Show `text`; when the rank is known, on rank 0 only."""
    if not _rank:
        _write(INFO, text)


def warning(text: str, once: str | None = None) -> None:
    """Show `text`; with `once`, a short slug, only the first time for this slug."""
    _write(WARNING, text, once)


def error(text: str) -> None:
    _write(ERROR, text)


# --- failures of the tool


class LogEntry(NamedTuple):
    """An entry of the log."""

    is_first: bool
    """True if no failure of this kind was logged before."""
    unwritten: str
    """The reason why the file cannot be written; empty if it was."""


class ErrorLog:
    """The log in one folder; each kind of failure has its traceback once.

    Args:
        folder: The folder, which exists by the time something is added.
    """

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, ERROR_LOG)
        self._known: set[str] = set()

    def __bool__(self) -> bool:
        """True if something was added."""
        return bool(self._known)

    def add(self, name: str, error: BaseException) -> LogEntry:
        """Add a failure. A file that cannot be written raises nothing.

        Args:
            name: The record, value or action that the failure concerns.
            error: The failure.
        """
        kind = _kind(error)
        is_first = kind not in self._known
        self._known.add(kind)
        if is_first:
            details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        else:
            details = f"{type(error).__name__}: {error}\n"
        try:
            with files.open_for_writing(self.path, append=True) as stream:
                stream.write(f"{clock.stamp('%Y-%m-%d %H:%M:%S')} {name}\n{details}\n".encode("utf-8", "replace"))
        except OSError as second:
            return LogEntry(is_first, second.strerror or str(second))
        return LogEntry(is_first, "")


def _kind(error: BaseException) -> str:
    """The kind of a failure: a full disk is one wherever it is met, another error one at each line."""
    if isinstance(error, OSError):
        return f"{type(error).__name__} {error.errno}"
    return f"{type(error).__name__} at {traceback.extract_tb(error.__traceback__)[-1:]}"
