"""Describes each tensor of a step once, however many calls it goes in and out of, and notes what is not finite."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from probe.common.interfaces import Entry, StatisticsMode, Tensors

_MOST_SUSPECTS = 20_000
"""Entries of one step that are noted; a step that has as many is written anyway."""

_MOST_KNOWN = 100_000
"""Tensors that are known again; most of so many are gone already."""


class _Known(NamedTuple):
    """A tensor that was described in this step."""

    tensor: weakref.ref[Any]
    mark: Any
    entry: Entry


class DescribedOnce:
    """Describes tensors in the place of the framework's own functions.

    A tensor keeps its entry as long as the framework says that it holds what it held (`Tensors.content_mark`); where
    it cannot say that, the statistics are taken again.

    Args:
        direct: See `Tensors.direct_describer`.
    """

    def __init__(
        self, tensors: Tensors, summary: StatisticsMode, direct: Callable[[Any], Entry | None] | None
    ) -> None:
        self._describe = tensors.describe_tensor
        self._mark = tensors.content_mark
        self._direct = direct
        self._summary = summary
        self._known: dict[int, _Known] = {}
        self._waiting: list[Entry] = []
        """Entries that may still wait for their statistics."""
        self._suspects: list[Entry] = []

    def forget(self) -> None:
        """A new step begins."""
        self._known = {}
        self._waiting = []
        self._suspects = []

    def direct(self, value: Any) -> Entry | None:
        """The entry of most tensors, ``None`` for any other value; see `Tensors.direct_describer`."""
        known = self._known.get(id(value))
        if known is not None and known.tensor() is value and known.mark == self._mark(value):
            return known.entry
        assert self._direct is not None
        entry = self._direct(value)
        if entry is not None:
            if not is_finite(entry) and len(self._suspects) < _MOST_SUSPECTS:
                self._suspects.append(entry)
            self._note(value, entry)
        return entry

    def describe(self, tensor: Any) -> Entry:
        """The entry of any tensor; its statistics may come later."""
        known = self._known.get(id(tensor))
        if known is not None and known.tensor() is tensor and known.mark == self._mark(tensor):
            return known.entry
        entry = self._describe(tensor, self._summary)
        self._waiting.append(entry)
        self._note(tensor, entry)
        return entry

    def _note(self, tensor: Any, entry: Entry) -> None:
        # Afterwards: whoever writes to it meanwhile, on another thread, has written to what was described, too.
        mark = self._mark(tensor)
        if mark is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[id(tensor)] = _Known(weakref.ref(tensor), mark, entry)

    def suspects(self) -> Sequence[Entry]:
        """What is not finite so far; every entry must have its statistics now."""
        waiting, self._waiting = self._waiting, []
        room = _MOST_SUSPECTS - len(self._suspects)
        self._suspects += [entry for entry in waiting if not is_finite(entry)][:room]
        return self._suspects


def is_finite(entry: Entry) -> bool:
    """Whether neither extreme of a tensor is a NaN or an infinity; true where there are no statistics."""
    largest, smallest = entry.get("Max"), entry.get("Min")
    if largest is None or smallest is None:
        return True
    # A NaN compares as false.
    return bool(-math.inf < smallest and largest < math.inf)
