"""The progress of a piece of work, reported to a callback a few times a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Optional, TypeVar

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
