"""Follows the calls of one rank in order, and keeps those that are not finite and were not meant to be."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

from probe.common.dump.naming import BACKWARD, FORWARD, function_name, is_gradients, parse
from probe.common.dump.reading.items import Item
from probe.common.nonfinite.call_values import CallValues, infinite_sign, is_nonfinite
from probe.common.nonfinite.infinities import Infinities, Source, is_masked
from probe.common.nonfinite.writes import fills, reads
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

INPUT, PARAMETER, OUTPUT, EXPLAINED, UNWRITTEN = 1, 2, 4, 8, 16
"""What is not finite in a record: an input, a parameter, an output. `EXPLAINED`: another record of this rank, which
stands later in the file, made it. `UNWRITTEN`: its input is memory that was never written."""


class BadRecord(NamedTuple):
    """A record with values that are not finite."""

    place: int
    """The number of the record among those of its rank."""
    name: str
    flags: int
    input: str = ""
    """The first input or parameter that is not finite."""
    output: str = ""
    """The first output that is not finite."""
    unwritten: str = ""
    """The record that gave the memory which was never written."""
    inside: str = ""
    """The module of which all inputs are finite, where something inside of it that is not recorded made its input."""
    mask: str = ""
    """The record that made the infinities, which were asked for, of which this one made something else."""


class Passed(NamedTuple):
    """What is not finite in a communication call; masks are minus infinities of which nothing else has come so far."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    masked_inputs: tuple[str, ...] = ()
    masked_outputs: tuple[str, ...] = ()
    masks: tuple[BadRecord, ...] = ()
    """The calls that made or got the masks among the inputs."""


class FollowedCalls:
    """The calls of one rank, as far as they were looked at; those whose values are all finite need not be shown."""

    def __init__(self) -> None:
        self.bad: list[BadRecord] = []
        """What is not finite and was not meant to be, in order once `end` was called."""
        self.uninitialised: list[str] = []
        """Records of memory that was never written and is not finite."""
        self.is_reached = False
        """Whether a record before has made something that is not finite, so that anything may come of it."""
        self.ignores_gradients = False
        """Whether gradients, and what is computed of them, may be infinite."""
        self._handed_on: BadRecord | None = None
        """The first call that handed on what came from outside, which nothing was computed of so far."""
        self._infinities = Infinities()
        self._unwritten: dict[tuple[object, object], str] = {}
        """Memory that was never written and is not finite: its record, by type and shape."""
        self._written: dict[tuple[object, int], BadRecord] = {}
        """Calls that were asked to write a NaN into a tensor and return nothing, by type and size of the tensor."""

    def without_gradients(self) -> FollowedCalls:
        """Follows the calls from here on as they are where gradients may be infinite.

        A gradient scaler skips a step for such gradients, and what clips or measures them is given them.
        """
        found = copy.deepcopy(self)
        found.ignores_gradients = True
        return found

    def look_at(self, index: int, name: str, values: CallValues) -> bool:
        """Go on to the next call; whether a value of it is not finite.

        Args:
            index: its number; every call has a greater one than those before.
            name: its record.
            values: its tensors and numbers.
        """
        if fills(name):
            self._infinities.write(index, name, values)
            if any(map(math.isnan, values.numbers)):
                record = BadRecord(index, name, OUTPUT, "", f"{name}.input.0")
                self._written.update({_memory(item): record for item in values.inputs[:1]})
        bad_inputs = [item for item in reads(name, values.inputs) if is_nonfinite(item)]
        bad_parameters = [item for item in values.parameters if is_nonfinite(item)]
        bad_outputs = [item for item in values.outputs if is_nonfinite(item)]
        if not (bad_inputs or bad_parameters or bad_outputs):
            return False
        if has(function_name(name), Trait.UNWRITTEN):
            # Memory that nobody has written to may hold anything.
            if bad_outputs:
                self.uninitialised.append(name)
                self._unwritten.update({(item.dtype, item.shape): name for item in bad_outputs})
            return True
        flags = INPUT * bool(bad_inputs) | PARAMETER * bool(bad_parameters) | OUTPUT * bool(bad_outputs)
        first_input = _first_name(bad_inputs) or _first_name(bad_parameters)
        record = BadRecord(index, name, flags, first_input, _first_name(bad_outputs))
        if self.ignores_gradients and is_of_backward(name):
            return True
        judged = record if self.is_reached else self._of_reached_by_none(record, values, bad_inputs)
        if judged is None or (self.ignores_gradients and not self.is_reached and judged.flags & INPUT):
            return True
        self._reach(judged)
        return True

    def _reach(self, record: BadRecord) -> None:
        """A record has something that is not finite and was not meant."""
        if not self.is_reached and record.flags & INPUT:
            if _computes_nothing_of_it(record):
                self._handed_on = self._handed_on or record
                return
            if self._handed_on is not None:
                self.bad.append(self._handed_on)
        self.is_reached = True
        self.bad.append(record)

    def communicate(self, index: int, name: str, inputs: list[Item], outputs: list[Item]) -> Passed:
        """Go on to a call by which ranks exchange values.

        Args:
            index: its number.
            name: its record.
            inputs: the tensors that it gives.
            outputs: those in which its result is.
        """
        bad_inputs, bad_outputs = list(filter(is_nonfinite, inputs)), list(filter(is_nonfinite, outputs))
        if not (bad_inputs or bad_outputs):
            return Passed()
        given, got = _names(bad_inputs), _names(bad_outputs)
        sources = None if self.is_reached else self._infinities.known(index, name, bad_inputs)
        if sources is None:
            self.is_reached = True
            # A mask may come to a rank that was reached, too.
            masked = _names([item for item in bad_outputs if infinite_sign(item) == -1])
            return Passed(given, tuple(name for name in got if name not in masked), (), masked)
        for source in sources:
            source.last = index
        masks = tuple(map(_as_record, sources))
        if any(infinite_sign(item) != -1 for item in bad_outputs):
            # What it gives may be a mask, and something else has come with that of other ranks.
            self.is_reached = True
            return Passed((), got, given, (), masks)
        for item in bad_outputs:
            self._infinities.receive(index, name, item)
        return Passed((), (), given, got, masks)

    def _of_reached_by_none(self, record: BadRecord, values: CallValues, bad_inputs: list[Item]) -> BadRecord | None:
        """What a call comes to before which nothing was wrong; ``None`` where it is as it was meant."""
        index, name, flags = record[:3]
        if flags == OUTPUT and self._infinities.begin(index, name, values):
            return None
        if flags & ~OUTPUT != INPUT:
            return record
        sources = self._infinities.known(index, name, bad_inputs)
        if sources is not None:
            return self._of_infinities(record, sources, values)
        written = self._writer_of(bad_inputs)
        if written is not None:
            self.bad.append(written)
            return record
        unwritten = self._unwritten_input(bad_inputs)
        if unwritten and not flags & OUTPUT:
            return None
        return record._replace(flags=flags | UNWRITTEN * bool(unwritten), unwritten=unwritten)

    def _of_infinities(self, record: BadRecord, sources: list[Source], values: CallValues) -> BadRecord | None:
        """What a call comes to that uses infinities which are known."""
        culprit = self._infinities.use(record.place, sources, values)
        if culprit is None:
            return None
        if culprit.user is not None and not is_masked(record.name):
            # No mask: infinities that came in, of which a call that knows no masks made something.
            came_in = _as_record(culprit)
            if came_in.place == record.place:
                return came_in
            self.bad.append(came_in)
            return record
        if culprit.is_asked_for and culprit.sign < 0:
            # The infinities were meant; what this call made of them was not.
            return record._replace(flags=OUTPUT, mask=culprit.name or culprit.item)
        self._add_source(culprit)
        return record

    def _writer_of(self, bad_inputs: list[Item]) -> BadRecord | None:
        """The call that wrote a NaN, the last one, into all of what a call got, whatever shape that has now."""
        found = [self._written.get(_memory(item)) for item in bad_inputs if not infinite_sign(item)]
        known = [record for record in found if record is not None]
        return max(known, key=lambda record: record.place) if known and len(known) == len(bad_inputs) else None

    def _unwritten_input(self, bad_inputs: list[Item]) -> str:
        found = [self._unwritten.get((item.dtype, item.shape), "") for item in bad_inputs]
        return found[0] if all(found) else ""

    def _add_source(self, source: Source) -> None:
        self.bad.append(_as_record(source))

    def end(self, names: Sequence[str]) -> list[BadRecord]:
        """All calls were looked at; what is not finite and was not meant to be, in order.

        Args:
            names: the records of all calls by their numbers; an empty text where a number has none.
        """
        first = self.bad[0] if self.bad else None
        unsettled = list(self._infinities.unsettled)
        is_end = _ends_of_forward(names) if unsettled else []
        for source in unsettled:
            # What is not recorded may have used it, as a cast to integers does. It counts where it is what the forward
            # ends with, and where something comes out of nowhere behind it.
            if is_end[source.last + 1] or (first is not None and first.flags & INPUT and first.place > source.last):
                self._add_source(source)
        self.bad.sort(key=lambda record: record.place)
        return self.bad

    @property
    def is_settled(self) -> bool:
        """Whether every infinity that nobody asked for was used by a call that made finite values of it."""
        return not self._infinities.unsettled

    @property
    def intended(self) -> list[str]:
        """Records that made infinities which were meant."""
        return [source.name for source in self._infinities.intended]


def _computes_nothing_of_it(record: BadRecord) -> bool:
    """Whether a call hands on what came from outside or leaves it out: data may be marked by NaN."""
    function = function_name(record.name)
    if record.flags & UNWRITTEN:
        return False
    return has(function, Trait.HANDS_ON) or (not record.flags & OUTPUT and has(function, Trait.LEAVES_OUT))


def is_of_backward(name: str) -> bool:
    """Whether a record holds gradients."""
    if is_gradients(name):
        return True
    if BACKWARD not in name:
        return False
    parsed = parse(name)
    return parsed is not None and parsed.direction == BACKWARD


def _as_record(source: Source) -> BadRecord:
    if source.user is not None:
        return BadRecord(*source.user, INPUT | OUTPUT, source.item)
    return BadRecord(source.index, source.name, OUTPUT, "", source.item)


def _memory(item: Item) -> tuple[object, int]:
    """What two views of one tensor have in common: the type, and how many numbers they hold."""
    return item.dtype, math.prod(item.shape or ())


def _names(items: list[Item]) -> tuple[str, ...]:
    return tuple(item.name for item in items)


def _ends_of_forward(names: Sequence[str]) -> list[bool]:
    """Of each record, and of the end, whether no forward call of a function comes before the next other record."""
    found = [True] * (len(names) + 1)
    for place in range(len(names) - 1, -1, -1):
        parsed = parse(names[place])
        if not names[place] or (parsed is not None and parsed.direction == FORWARD and parsed.is_module):
            found[place] = found[place + 1]
        else:
            found[place] = parsed is None or parsed.direction != FORWARD
    return found


def _first_name(items: list[Item]) -> str:
    return items[0].name if items else ""
