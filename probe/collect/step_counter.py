"""The number of the program's step, and the wanted steps that have begun."""

from __future__ import annotations

from collections.abc import Sequence


class StepCounter:
    """Counts the steps of one session."""

    def __init__(self) -> None:
        self.first = 0
        """The number of the first step."""
        self.ended = 0
        """The number of steps that are over."""
        self.begun: int | None = None
        """The step that has begun and not ended, wanted or not."""
        self._reached: set[int] | None = None
        """The wanted steps that have begun; ``None`` before any has begun in this process."""

    @property
    def current(self) -> int:
        """The number of the step that goes on, or comes next."""
        return self.first + self.ended

    def begin(self, wanted: Sequence[int]) -> None:
        """Something was called that belongs to the current step; `wanted` are the steps that were asked for."""
        self.begun = self.current
        self._reached = self._reached or set()
        if self.current in wanted:
            self._reached.add(self.current)

    def take_back(self) -> None:
        """The step that has begun is none, for nothing was called in it."""
        if self._reached is not None:
            self._reached.discard(self.current)
        self.begun = None

    def restart(self) -> None:
        """All steps so far are none."""
        self.ended, self.begun, self._reached = 0, None, None

    def forked(self) -> None:
        """The step that has begun is that of the parent process."""
        self.begun = None
        self._reached = None

    def unreached(self, wanted: Sequence[int]) -> list[int]:
        """The wanted steps that never began, if any step began in this process."""
        return [] if self._reached is None else [step for step in wanted if step not in self._reached]

    def ran_text(self) -> str:
        """The number of steps that the program has made.

        Example:
            ``3 steps (0-2)``
        """
        first, last = self.first, self.current - (self.begun is None)
        return f"1 step ({first})" if first == last else f"{last + 1 - first} steps ({first}-{last})"
