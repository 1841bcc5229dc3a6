"""Describes each tensor of a step once, however many calls it goes in and out of, and notes what is not finite."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from probe.backends.protocol import Tensors
from probe.collect.active_calls import ActiveCall
from probe.common.interfaces import Entry, StatisticsMode
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has, writes_in_place

_LEAST, _MOST = -math.inf, math.inf
_WORTH_KNOWING = 8192
"""Elements from which on to look whether a tensor is known takes less than to describe it."""
_MOST_KNOWN = 100_000
"""Tensors that are known again; most of so many are gone already."""


class _DescribedTensor(NamedTuple):
    """A tensor that was described in this step."""

    tensor: weakref.ref[Any]
    mark: Any
    entry: Entry


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
        """Those so far; every entry must have its statistics now."""
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            if not is_finite(entry):
                self.add(entry)
        return self._found


class DescribedOnce:
    """Describes tensors in the place of the framework's own functions, for one step.

    A tensor keeps its entry as long as the framework says that it holds what it held (`Tensors.content_mark`). Since
    not every write is counted, only results of calls are known again (`expect`), and none of them any more once
    something was called that may write without being counted (`forget`); of all else the statistics are taken again.

    Args:
        direct: See `Tensors.direct_describer`.
        suspects: Gets the entries that are not finite.
        remembers: True if any tensor is known again.
    """

    def __init__(
        self,
        tensors: Tensors,
        summary: StatisticsMode,
        direct: Callable[[Any], Entry | None] | None,
        suspects: Suspects,
        remembers: bool,
    ) -> None:
        self._describe = tensors.describe_tensor
        self._mark = tensors.content_mark
        self._direct = direct
        self._summary = summary
        self._suspects = suspects
        self._remembers = remembers
        self._known: dict[int, _DescribedTensor] = {}
        self._expected: dict[int, Any] = {}
        """The marks of results that are about to be described."""
        self._in_background: set[ActiveCall] = set()
        """Calls that work on, and may write at any time."""

    # --- what may have been written to

    def forget(self) -> None:
        """Any tensor may have been written to."""
        self._known = {}
        self._expected = {}

    def suspend(self, call: ActiveCall) -> None:
        """`call` has returned and works on in the background."""
        self._in_background.add(call)
        self.forget()

    def update(self, call: ActiveCall) -> None:
        """The background work of `call` has ended."""
        self._in_background.discard(call)
        self.forget()

    def returned(self, call: ActiveCall, output: Any, is_seen: bool) -> None:
        """`call` has returned `output`, which is described next; `is_seen`: and so are calls that may write to it."""
        if call.api is not None:
            # It has just been written; a module may hand on what was described already.
            self.forget_these(output)
        if is_seen and (call.api is None or not _hands_out_memory(call)):
            self.expect(output)

    def expect(self, values: Any) -> None:
        """`values`, a result or several, are about to be described, and to be known from then on."""
        if not self._remembers or self._in_background:
            return
        for value in values if isinstance(values, (tuple, list)) else (values,):
            # Before: what is written meanwhile, on another thread, makes it another mark.
            mark = self._mark(value)
            if mark is not None:
                self._expected[id(value)] = mark

    def forget_these(self, values: Any) -> None:
        """A call has just made `values`, a result or several, or written to them."""
        for value in values if isinstance(values, (tuple, list)) else (values,):
            self._known.pop(id(value), None)

    # --- describing

    def direct(self, value: Any) -> Entry | None:
        """The entry of most tensors, ``None`` for any other value; see `Tensors.direct_describer`."""
        known = self._known.get(id(value))
        if known is not None and known.tensor() is value and known.mark == self._mark(value):
            return known.entry
        entry = self._direct(value)  # type: ignore[misc]
        if entry is None:
            return None
        # A NaN compares as false.
        if not (entry["Min"] > _LEAST and entry["Max"] < _MOST):
            self._suspects.add(entry)
        if self._expected:
            mark = self._expected.pop(id(value), None)
            shape = entry["shape"]
            if mark is not None and len(shape) > 1 and math.prod(shape) >= _WORTH_KNOWING:
                self._note(value, mark, entry)
        return entry

    def describe(self, tensor: Any) -> Entry:
        """The entry of any tensor; its statistics may come later."""
        known = self._known.get(id(tensor))
        if known is not None and known.tensor() is tensor and known.mark == self._mark(tensor):
            return known.entry
        entry = self._describe(tensor, self._summary)
        self._suspects.ask_later(entry)
        mark = self._expected.pop(id(tensor), None)
        if mark is not None:
            self._note(tensor, mark, entry)
        return entry

    def _note(self, tensor: Any, mark: Any, entry: Entry) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(tensor)] = _DescribedTensor(weakref.ref(tensor), mark, entry)


def _hands_out_memory(call: ActiveCall) -> bool:
    """True if a result of this call may be a buffer, or be filled by what is not seen."""
    assert call.api is not None
    name = call.api.api
    if call.api.returns_arguments or writes_in_place(name):
        return True
    # Kernels fill such memory without that being counted.
    return has(name, Trait.UNWRITTEN, Trait.CONSTANT)


def is_finite(entry: Entry) -> bool:
    """True if no statistic of a tensor says that a NaN or an infinity is in it; true where there are none."""
    largest, smallest, mean = entry.get("Max"), entry.get("Min"), entry.get("Mean")
    if largest is None or smallest is None:
        return True
    # A NaN compares as false. Extremes of some devices leave it out; the mean has it then.
    return bool(-math.inf < smallest and largest < math.inf and (mean is None or mean == mean))
