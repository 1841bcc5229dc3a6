"""The progress of a piece of work, reported to a callback a few times a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, Optional, TextIO, TypeVar

ProgressCallback = Callable[[str, int, Optional[int]], None]
"""A callback for what is counted, how many are done, and of how many; ``None`` where that is not known."""
T = TypeVar("T")
REFRESHES_PER_SECOND = 5
"""The number of times that a callback is called."""


def with_progress(items: Iterable[T], watch: ProgressCallback, what: str, total: int) -> Iterator[T]:
    """`items`; `watch` is called a few times a second with how many there were."""
    due = 0.0
    for done, item in enumerate(items):
        if (now := monotonic()) >= due:
            watch(what, done, total)
            due = now + 1 / REFRESHES_PER_SECOND
        yield item


# --- terminal


class Progress:
    """A bar at the foot of standard output while the context lasts."""

    def __init__(self, wanted: bool = True) -> None:
        self.watch: ProgressCallback | None = self._watch if wanted and sys.stdout.isatty() and _has_rich() else None
        """The callback for how far the work is; ``None`` where nobody would see it."""
        self._bar: Any = None
        self._line: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _watch(self, what: str, done: int, total: int | None) -> None:
        if self._bar is None:
            self._bar = _bar()
            self._line = self._bar.add_task(what, total=total)
            self._bar.start()
        self._bar.update(self._line, description=what, completed=done, total=total)


def _has_rich() -> bool:
    from importlib.util import find_spec

    return find_spec("rich") is not None


def _bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, transient=True, refresh_per_second=REFRESHES_PER_SECOND)


# --- the console


def console_of(stream: TextIO) -> Any:
    """A rich console, or ``None`` where there is no terminal or rich is not installed."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)
