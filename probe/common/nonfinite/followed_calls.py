"""Follows the calls of one rank in order, and keeps those that are not finite and were not meant to be."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from probe.common.dump.naming import (
    FORWARD,
    function_name,
    is_backward,
    is_gradients,
    is_module,
    parse,
    record_name,
)
from probe.common.dump.reading.items import Item
from probe.common.nonfinite.call_values import CallValues, fills, infinite_sign, is_nonfinite, memory, reads
from probe.common.nonfinite.lineages import (
    INPUT,
    OUTPUT,
    PARAMETER,
    UNWRITTEN,
    BadRecord,
    Candidate,
    Candidates,
    Infinities,
    MakerOf,
    Source,
    TensorMap,
    is_masked,
    leaves_it_at_that,
    no_maker,
)
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has


class PassedValues(NamedTuple):
    """Values in a communication call that are not finite; masks are minus infinities that caused nothing else."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    masked_inputs: tuple[str, ...] = ()
    masked_outputs: tuple[str, ...] = ()
    masks: tuple[BadRecord, ...] = ()
    """The calls that made or got the masks among the inputs."""


class FollowedCalls:
    """The calls of one rank, as far as they were looked at; those whose values are all finite need not be shown.

    Args:
        maker_of: tells the maker of a tensor, if the dump records makers; otherwise tensors are known by statistics.
    """

    def __init__(self, maker_of: MakerOf = no_maker) -> None:
        self.bad: list[BadRecord] = []
        """The records that are not finite and were not meant to be, in order once `end` was called."""
        self.uninitialised: list[str] = []
        """Records of memory that was never written and is not finite."""
        self.is_reached = False
        """True if a record before has made something that is not finite, so that anything may come of it."""
        self.ignores_gradients = False
        """True if gradients, and what is computed of them, may be infinite."""
        self._infinities = Infinities(maker_of)
        self._candidates = Candidates(maker_of)
        self._numbers: dict[str, int] = {}
        """The numbers of forward calls by their records, from the first candidate on."""
        self._in_backward = False
        """True if the last call was one of the backward."""
        self._has_gradients = False
        """True if a call of the backward was among those before."""
        self._unwritten: TensorMap[str] = TensorMap(maker_of, lambda item: (item.dtype, item.shape))
        """Memory that was never written and is not finite: its record."""
        self._written: dict[tuple[object, int], BadRecord] = {}
        """Calls that were asked to write a NaN into a tensor and return nothing, by type and size of the tensor."""

    def without_gradients(self) -> FollowedCalls:
        """Follows the calls from here on as they are where gradients may be infinite.

        A gradient scaler skips a step for such gradients, and what clips or measures them is given them.
        """
        followed = copy.deepcopy(self)
        followed.ignores_gradients = True
        return followed

    def pass_by(self, index: int, name: str) -> None:
        """Tell of the next call, before it is looked at; of every call, its values finite or not."""
        if not is_of_backward(name):
            self._in_backward = False
            if self._candidates.are_there:
                self._numbers[name] = index
        elif not is_gradients(name):
            is_first = not self._in_backward
            self._in_backward = self._has_gradients = True
            if is_first:
                self._begin_backward(name)
            elif self._candidates.are_there:
                self._go_back(name)

    def _go_back(self, name: str) -> None:
        """Report the candidate of this forward call: with several batches, each has its own loss and backward."""
        parsed = parse(name)
        candidate = parsed and self._candidates.of_number(record_name(parsed._replace(direction=FORWARD)))
        if candidate:
            self._report(candidate)

    def _begin_backward(self, name: str) -> None:
        """The backward begins at the result of the forward call of `name`, most often the loss."""
        parsed = parse(name)
        if parsed is None:
            return
        result = record_name(parsed._replace(direction=FORWARD))
        # Candidates that came later are of another batch, whose backward is still to come.
        number = self._numbers.get(result, -1)
        if self.is_reached:
            self._go_back(name)
            return
        candidate, source = self._candidates.of_record(result), self._infinities.of_record(result)
        if candidate is not None:
            self._report(candidate)
        elif source is not None:
            # A mask, too: a loss of minus infinity is no mask.
            self._reach([_as_record(source)])
        else:
            self._candidates.leave_out(number)

    def look_at(self, index: int, name: str, values: CallValues) -> bool:
        """Go on to the next call; true if a value of it is not finite.

        Args:
            index: the number of the call; every call has a greater one than those before.
            name: the record of the call.
            values: the tensors and numbers of the call.
        """
        if fills(name):
            self._infinities.write(index, name, values)
            if any(map(math.isnan, values.numbers)):
                record = BadRecord(index, name, OUTPUT, "", f"{name}.input.0")
                self._written.update({memory(item): record for item in values.inputs[:1]})
        bad_inputs, bad_outputs = _bad(reads(name, values.inputs)), _bad(values.outputs)
        bad_parameters = _bad(values.parameters)
        if not (bad_inputs or bad_parameters or bad_outputs):
            return False
        if has(function_name(name), Trait.UNWRITTEN):
            # Memory that nobody has written to may hold anything.
            if bad_outputs:
                self.uninitialised.append(name)
                for item in bad_outputs:
                    self._unwritten.add(item, name)
            return True
        flags = INPUT * bool(bad_inputs) | PARAMETER * bool(bad_parameters) | OUTPUT * bool(bad_outputs)
        first_input = _first_name(bad_inputs) or _first_name(bad_parameters)
        record = BadRecord(index, name, flags, first_input, _first_name(bad_outputs))
        if self.ignores_gradients and is_of_backward(name):
            return True
        if self.is_reached:
            self.bad.append(record)
        elif not self.ignores_gradients or not self._has_gradients or not flags & INPUT:
            self._take(record, values)
        return True

    def _take(self, record: BadRecord, values: CallValues) -> None:
        """A call has something that is not finite, and no call before it was a finding."""
        inputs, outputs = _bad(reads(record.name, values.inputs)), _bad(values.outputs)
        # A module returns what a call inside of it made.
        is_returned = record.flags == OUTPUT and is_module(record.name)
        candidate = self._candidates.candidate_of_items(outputs if is_returned else inputs)
        if candidate is None or record.flags & PARAMETER:
            records = self._findings_if_unreached(record, values, inputs)
            if records is None:
                return
            last = records[-1]
            if self._matters_at_once(last):
                self._report_of_forward(record.name)
                self._reach(records)
                return
            is_beyond_type = last.flags == OUTPUT and not last.mask and all(map(infinite_sign, outputs))
            candidate = self._candidates.begin(records, inputs, outputs, is_beyond_type)
            computes = bool(inputs) and not outputs and not leaves_it_at_that(record.name, False)
            if computes and is_masked(record.name) and all(infinite_sign(item) == -1 for item in inputs):
                # Scores that were masked by a call that is not recorded.
                return
        else:
            computes = self._candidates.go_on(candidate, record, inputs, outputs)
        if computes or is_of_backward(record.name):
            self._report(candidate)

    def _report_of_forward(self, name: str) -> None:
        """Report the candidate that a bad gradient of parameters comes from, which nothing left out.

        Such gradients stand before the backward of their module, which need not have shown where the backward begins.
        """
        candidate = self._candidates.first_open() if is_gradients(name) else None
        if candidate is not None and candidate.open:
            self._report(candidate)

    def _matters_at_once(self, record: BadRecord) -> bool:
        """True if a record is a finding whatever comes of it."""
        return bool(record.flags & PARAMETER) or is_of_backward(record.name)

    def _report(self, candidate: Candidate) -> None:
        """Report a candidate; the records that it reached are its consequences."""
        self._reach(self._candidates.take(candidate))

    def _reach(self, records: Sequence[BadRecord]) -> None:
        if not self.is_reached:
            self.is_reached = True
            first = self._candidates.first_open()
            if first is not None and records[0].flags & (INPUT | PARAMETER) and first.number < records[0].number:
                self.bad += self._candidates.take(first)
            # The others are consequences of this one, or have none.
            self._candidates.leave_out(records[-1].number if records else 0)
        self.bad += records

    def communicate(self, index: int, name: str, inputs: list[Item], outputs: list[Item]) -> PassedValues:
        """Go on to a call by which ranks exchange values.

        Args:
            index: the number of the call.
            name: the record of the call.
            inputs: the tensors that it gives.
            outputs: the tensors in which its result is.
        """
        bad_inputs, bad_outputs = _bad(inputs), _bad(outputs)
        if not (bad_inputs or bad_outputs):
            return PassedValues()
        given, got = _names(bad_inputs), _names(bad_outputs)
        candidate = None if self.is_reached else self._candidates.candidate_of_items(bad_inputs)
        if candidate is not None:
            self._report(candidate)
        sources = None if self.is_reached else self._infinities.known(index, name, bad_inputs)
        if sources is None:
            self.is_reached = True
            # A mask may come to a rank that was reached, too.
            masked = _names([item for item in bad_outputs if infinite_sign(item) == -1])
            return PassedValues(given, tuple(name for name in got if name not in masked), (), masked)
        for source in sources:
            source.last = index
        masks = tuple(map(_as_record, sources))
        if any(infinite_sign(item) != -1 for item in bad_outputs):
            # Its own values may be a mask, and other values have come from other ranks.
            self.is_reached = True
            return PassedValues((), got, given, (), masks)
        for item in bad_outputs:
            self._infinities.receive(index, name, item)
        return PassedValues((), (), given, got, masks)

    def _findings_if_unreached(
        self, record: BadRecord, values: CallValues, bad_inputs: list[Item]
    ) -> list[BadRecord] | None:
        """The findings at a call if nothing was wrong before it; ``None`` if the values were meant."""
        index, name, flags = record[:3]
        if flags == OUTPUT and self._infinities.begin(index, name, values):
            return None
        if flags & ~OUTPUT != INPUT:
            return [record]
        unwritten = self._unwritten_input(bad_inputs)
        sources = None if unwritten else self._infinities.known(index, name, bad_inputs)
        if sources is not None:
            return self._findings_on_infinities(record, sources, values)
        written = self._writer_of(bad_inputs)
        if written is not None:
            return [written, record]
        if unwritten and not flags & OUTPUT:
            return None
        return [record._replace(flags=flags | UNWRITTEN * bool(unwritten), unwritten=unwritten)]

    def _findings_on_infinities(
        self, record: BadRecord, sources: list[Source], values: CallValues
    ) -> list[BadRecord] | None:
        """The findings at a call that uses infinities which are known."""
        culprit = self._infinities.use(record.number, record.name, sources, values)
        if culprit is None:
            return None
        if culprit.user is not None and not is_masked(record.name):
            # No mask: infinities that came in, of which a call that knows no masks made something.
            came_in = _as_record(culprit)
            return [came_in] if came_in.number == record.number else [came_in, record]
        if culprit.is_asked_for:
            # The infinities were meant; what this call made of them was not.
            return [record._replace(flags=OUTPUT, mask=culprit.name or culprit.item)]
        return [_as_record(culprit), record]

    def _writer_of(self, bad_inputs: list[Item]) -> BadRecord | None:
        """The call that wrote a NaN, the last one, into all of what a call got, whatever shape that has now."""
        writers = [self._written.get(memory(item)) for item in bad_inputs if not infinite_sign(item)]
        known = [record for record in writers if record is not None]
        return max(known, key=lambda record: record.number) if known and len(known) == len(bad_inputs) else None

    def _unwritten_input(self, bad_inputs: list[Item]) -> str:
        makers = [self._unwritten.get(item) or "" for item in bad_inputs]
        return makers[0] if all(makers) else ""

    @property
    def waiting(self) -> list[BadRecord]:
        """The findings that are reported if nothing leaves them out and nothing else is reported."""
        candidate = None if self.is_reached else self._candidates.first_open()
        return [] if candidate is None else candidate.records

    def end(self, names: Sequence[str]) -> list[BadRecord]:
        """All calls were looked at; what is not finite and was not meant to be, in order.

        Args:
            names: the records of all calls by their numbers; an empty text where a number has none.
        """
        is_end = _ends_of_forward(names) if self._infinities.unsettled else []
        self.bad += self._candidates.end()
        for source in list(self._infinities.unsettled):
            # A call that is not recorded may have used it, such as a cast to integers. It counts if the forward ends
            # with it.
            if is_end[source.last + 1]:
                self.bad.append(_as_record(source))
        self.bad.sort(key=lambda record: record.number)
        return self.bad

    @property
    def is_settled(self) -> bool:
        """True if all that is not finite was used by calls that made finite values of it, and no more is waited for."""
        return not self._infinities.unsettled and self._candidates.first_open() is None

    @property
    def intended(self) -> list[str]:
        """Records that made values which are not finite and have no consequence, or were meant to be so."""
        return [source.name for source in self._infinities.intended] + self._candidates.dismissed


def is_of_backward(name: str) -> bool:
    """True if a record holds gradients."""
    return is_backward(name) or is_gradients(name)


def _as_record(source: Source) -> BadRecord:
    if source.user is not None:
        return BadRecord(*source.user, INPUT | OUTPUT, source.item)
    return BadRecord(source.number, source.name, OUTPUT, "", source.item)


def _bad(items: Iterable[Item]) -> list[Item]:
    """The tensors that are not finite."""
    return list(filter(is_nonfinite, items))


def _names(items: list[Item]) -> tuple[str, ...]:
    return tuple(item.name for item in items)


def _ends_of_forward(names: Sequence[str]) -> list[bool]:
    """For each record, and for the end, True if no forward call of a function comes before the next other record."""
    is_end = [True] * (len(names) + 1)
    for number in range(len(names) - 1, -1, -1):
        parsed = parse(names[number])
        if not names[number] or (parsed is not None and parsed.direction == FORWARD and parsed.is_module):
            is_end[number] = is_end[number + 1]
        else:
            is_end[number] = parsed is None or parsed.direction != FORWARD
    return is_end


def _first_name(items: list[Item]) -> str:
    return items[0].name if items else ""
