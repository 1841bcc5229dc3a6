"""Finds which call made each tensor that goes into another one.

A tensor is known again by its memory, which views and detached tensors share, and by a mark of what was written to it.
No name is made while the program runs: entries get serial numbers, and `probe.common.dump.sketch_file` makes names of
them. A tensor is unknown, rather than said to be made by the wrong call, where something wrote to it that is not
recorded.

The compiled part does what is done for nearly every tensor; it need not be there.
"""

from __future__ import annotations

import itertools
import math
import weakref
from typing import Any, Callable, Optional

from probe.backends.protocol import HeldTensor, Hooks, Tensors
from probe.common.dump.sketch_file import MAKER, SERIAL, SKETCH, VIEW
from probe.common.interfaces import Entry
from probe.common.numerics.formats import rounds
from probe.common.operations.lookup import writes_in_place

try:
    from probe.collect.describing import _makers as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

Describe = Callable[[Any], Optional[Entry]]

_FEW = 64
"""Memories that are remembered before it is looked for the first time which of them are gone."""


class _Memory:
    """The memory of one tensor or more.

    Args:
        storage: The memory, which is referred to weakly.
        mark: Of what was written to it.
        number: Of the entry of the tensor that was made there.
    """

    __slots__ = ("made", "mark", "ref", "writer", "written")

    def __init__(self, storage: Any, mark: Any, number: int) -> None:
        self.ref = weakref.ref(storage)
        self.writer = number
        """The number of the entry of the tensor that was last made or written there."""
        self.mark = mark
        self.written: Any = None
        """The part that the last write was to, as `Tensors.part` gives it; ``None`` if that was all of it."""
        self.made: dict[int, tuple[weakref.ref[Any], int, Any]] = {}
        """Each tensor there that a call returned, its number and its mark, by its identity."""


class Makers:
    """The makers of the tensors of one step.

    Args:
        tensors: Those of the framework.
        hooks: Know which tensors models hold.
        sees_functions: True if functions are recorded, and not modules alone.
        failed: Called with the error of a tensor whose maker cannot be found.
    """

    def __init__(
        self, tensors: Tensors, hooks: Hooks, sees_functions: bool, failed: Callable[[Exception], None]
    ) -> None:
        self._memory = tensors.memory
        self._counted_memory = tensors.counted_memory
        self._base = tensors.base
        self._part = tensors.part
        self._hooks = hooks
        self._sees_functions = sees_functions
        self._failed = failed
        # The compiled part has these objects too.
        self._numbers = itertools.count(1)
        self._memories: dict[int, Any] = {}
        self._held: dict[int, HeldTensor] = {}
        self._gradients: dict[int, HeldTensor] = {}
        self.state: list[Any] = [False, None, _FEW]
        """True if gradients may have become others; the function whose call is described, ``None`` for a module's; the
        number of memories at which it is looked which of them are gone."""
        self._contents: dict[Any, int] = {}
        """The number of the entry that had these contents first, if gradients are new objects for each call."""
        self._data = 0
        """The last number before the first one of what a call returned."""
        self._accumulated = 0
        """The number of the last entry before the gradients were asked for."""
        self._one_memory = _Memory if compiled is None else compiled.Memory

    def hold(self, models: Any) -> None:
        """Know the parameters and buffers of `models`, and no others, by their names."""
        self._held.clear()
        self._held.update(self._hooks.held_tensors(models))
        self.state[0] = True

    def forget(self) -> None:
        """The step is over."""
        for known in (self._memories, self._held, self._gradients, self._contents):
            known.clear()

    def describing(self, kind: int, describe: Describe) -> Describe:
        """`describe`, which notes in each entry that it answers what `kind`, a place in `KINDS`, says."""
        note = KINDS[kind]

        def rest(value: Any, entry: Entry) -> None:
            try:
                note(self, value, entry)
            except Exception as error:
                entry.pop(MAKER, None)
                self._failed(error)

        if compiled is not None and self._counted_memory is not None:
            known: Any = self._held, self._gradients, self._memories, self._numbers, self.state
            return compiled.Noter(kind, describe, rest, *self._counted_memory, *known)

        def described(value: Any) -> Entry | None:
            entry = describe(value)
            if entry is not None:
                rest(value, entry)
            return entry

        return described

    # --- what is described

    def given(self, tensor: Any, entry: Entry) -> None:
        """Note who made an input of a call."""
        if self.state[0]:
            self._take_gradients()
        held = self._held.get(id(tensor))
        if held is not None and held.holds(tensor):
            entry[MAKER] = held.text
            return
        of_tensor = self._memory(tensor)
        if of_tensor is None:
            return
        is_known, maker = self._maker(tensor, of_tensor, entry)
        gradient = self._gradients.get(id(tensor))
        if gradient is not None and gradient.has_gradient(tensor):
            # A call that wrote to it, clipping say, is later than what was accumulated.
            written = maker is not None and maker > self._accumulated
            entry[MAKER] = maker if written else f"gradient:{gradient.text.partition(':')[2]}"
        elif maker is not None:
            entry[MAKER] = maker
        elif not is_known:
            self._note_first(tensor, entry, *of_tensor)

    def given_gradient(self, tensor: Any, entry: Entry) -> None:
        """Note who made a gradient that goes into a backward, or that was accumulated."""
        of_tensor = self._memory(tensor)
        if of_tensor is None:
            return
        is_known, maker = self._maker(tensor, of_tensor, entry)
        if not is_known and of_tensor[2] is None:
            maker = self._contents.get(_contents_of(entry))
        if maker is not None:
            entry[MAKER] = maker

    def returned(self, tensor: Any, entry: Entry) -> None:
        """Note that a call returned `tensor`."""
        held = self._held.get(id(tensor))
        if held is not None and held.holds(tensor):
            entry[MAKER] = held.text
            return
        of_tensor = self._memory(tensor)
        if of_tensor is None:
            return
        storage, itself, mark = of_tensor
        memory = self._known(storage)
        counted = mark is not None
        if not counted:
            mark = self._mark_of(entry)
        if memory is None:
            self._remember(tensor, storage, itself, mark, self._number(entry))
            return
        api = self.state[1]
        found = _found(memory, itself)
        if api is None or not (api.returns_arguments or (not counted and writes_in_place(api.api))):
            if found is not None and found[2] == mark:
                entry[MAKER] = found[1]
                return
            if mark == memory.mark if counted else found is None:
                # A view of what is there already.
                if api is None and self._is_of_writer(memory, tensor):
                    entry[MAKER] = -memory.writer
                _add(memory, itself, self._number(entry), mark)
                return
        memory.writer = number = self._number(entry)
        memory.mark, memory.written = mark, self._part(tensor)
        _add(memory, itself, number, mark)

    def returned_gradient(self, tensor: Any, entry: Entry) -> None:
        """Note that a backward returned `tensor`."""
        self.state[0] = True
        self.returned(tensor, entry)
        contents = _contents_of(entry) if self._counted_memory is None else None
        if contents is not None:
            first = self._contents.setdefault(contents, entry.get(SERIAL, 0))
            if first and first != entry.get(SERIAL) and MAKER not in entry:
                entry[MAKER] = first

    # --- parts

    def _known(self, storage: Any) -> Any:
        memory = self._memories.get(id(storage))
        return None if memory is None or memory.ref() is not storage else memory

    def _maker(self, tensor: Any, of_tensor: tuple[Any, Any, Any], entry: Entry) -> tuple[bool, int | None]:
        """True if the memory of `tensor` is known, and the number of what made it.

        Args:
            tensor: The tensor that is described.
            of_tensor: The answer of `Tensors.memory` about it.
            entry: The entry of the tensor.

        Returns:
            The number is negative if the tensor is a view of what has it, and ``None`` if the maker is unknown.
        """
        storage, itself, mark = of_tensor
        memory = self._known(storage)
        if memory is None:
            return False, None
        found = _found(memory, itself)
        counted = mark is not None
        if found is not None and found[2] == (mark if counted else self._mark_of(entry)):
            return True, int(found[1])
        is_view = mark == memory.mark if counted else found is None and self._sees_functions
        return True, -int(memory.writer) if is_view and self._is_of_writer(memory, tensor) else None

    def _is_of_writer(self, memory: Any, tensor: Any) -> bool:
        """True if the last write to `memory` was to all of it, to a part of `tensor`, or to what `tensor` is a part of.

        A part with gaps, such as a column, may have others between its elements: it contains none for certain.
        """
        written = memory.written
        if written is None:
            return True
        start, end, is_dense = self._part(tensor) or (0, math.inf, True)
        if start <= written[0] and written[1] <= end:
            return bool(is_dense)
        return bool(written[0] <= start and end <= written[1] and written[2])

    def _mark_of(self, entry: Entry) -> Any:
        """A mark of the contents of a tensor of which nobody counts the writes."""
        values = _values_of(entry)
        # Still on a device: functions that write are recorded, or else it may have been written to.
        return values if self._sees_functions or values[0] is not None else object()

    def _note_first(self, tensor: Any, entry: Entry, storage: Any, itself: Any, mark: Any) -> None:
        """Nothing is known of the memory of an input."""
        base = self._base(tensor)
        held = None if base is None else self._held.get(id(base))
        if held is not None and held.holds(base):
            entry[MAKER] = VIEW + held.text
            return
        number = next(self._numbers)
        are_data = number == self._data + 1  # no call has returned anything yet
        if are_data:
            self._data = number
        # Later, a function that is not recorded may have made it of what a call returned, unless it is labels, say.
        if are_data or (self._sees_functions and not rounds(str(entry.get("dtype")))):
            entry[MAKER] = entry[SERIAL] = number
            self._remember(tensor, storage, itself, mark if mark is not None else self._mark_of(entry), number)

    def _number(self, entry: Entry) -> int:
        entry[SERIAL] = number = next(self._numbers)
        return number

    def _remember(self, tensor: Any, storage: Any, itself: Any, mark: Any, number: int) -> None:
        memories = self._memories
        if len(memories) >= self.state[2]:
            # A list first: another thread may add to them.
            for key, memory in list(memories.items()):
                if memory.ref() is None:
                    memories.pop(key, None)
            # Twice as many as are left, so that to look takes a constant time for each.
            self.state[2] = max(_FEW, 2 * len(memories))
        memories[id(storage)] = memory = self._one_memory(storage, mark, number)
        memory.written = self._part(tensor)
        _add(memory, itself, number, mark)

    def _take_gradients(self) -> None:
        self.state[0] = False
        self._accumulated = number = next(self._numbers)
        if number == self._data + 1:
            self._data = number
        self._gradients.clear()
        with_gradients = ((each.gradient(), each) for each in self._held.values())
        self._gradients.update((id(gradient), each) for gradient, each in with_gradients if gradient is not None)


def _found(memory: Any, itself: Any) -> tuple[Any, int, Any] | None:
    found: tuple[Any, int, Any] | None = memory.made.get(id(itself))
    # Another tensor may have the identity of one that is gone.
    return found if found is not None and found[0]() is itself else None


def _add(memory: Any, itself: Any, number: int, mark: Any) -> None:
    if itself is not None:
        memory.made[id(itself)] = weakref.ref(itself), number, mark


def _contents_of(entry: Entry) -> Any:
    """The contents of a tensor, ``None`` where other tensors easily have the same."""
    largest = entry.get("Max")
    return None if largest is None or largest == entry.get("Min") else (str(entry["shape"]), _values_of(entry))


def _values_of(entry: Entry) -> Any:
    """The values of a tensor as far as the entry has them by now."""
    return entry.get(SKETCH) or (entry.get("Max"), entry.get("Min"), entry.get("Mean"), entry.get("Norm"))


KINDS: tuple[Callable[[Makers, Any, Entry], None], ...] = (
    Makers.given, Makers.given_gradient, Makers.returned, Makers.returned_gradient,
)  # fmt: skip
"""The notes on inputs, on gradients that go into a backward, on outputs, and on gradients that one returned."""
