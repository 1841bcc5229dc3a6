"""The tensors of a step that are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probe.common.interfaces import Entry


class Suspects:
    """The entries of one step of which something is not finite."""

    def __init__(self) -> None:
        self._waiting: list[Entry] = []
        """Entries that may not have their statistics yet."""
        self._found: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """`entry` is not finite."""
        self._found.append(entry)

    def ask_later(self, entry: Entry) -> None:
        self._waiting.append(entry)

    def all(self) -> Sequence[Entry]:
        """The suspects so far; every entry must have its statistics now."""
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            if not is_finite(entry):
                self.add(entry)
        return self._found


def is_finite(entry: Entry) -> bool:
    """True if no statistic of a tensor says that a NaN or an infinity is in it; true where there are none."""
    largest, smallest, mean = entry.get("Max"), entry.get("Min"), entry.get("Mean")
    if largest is None or smallest is None:
        return True
    # A NaN compares as false. Extremes of some devices leave it out; the mean has it then.
    return bool(-math.inf < smallest and largest < math.inf and (mean is None or mean == mean))
