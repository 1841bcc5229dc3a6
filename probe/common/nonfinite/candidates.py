"""Records that made what is not finite, as long as it may still turn out to have no consequence.

Data are marked by NaN where a value is missing, and a logarithm of 0 is left out by ``where``. Such a value is followed
from call to call, as the infinities of masks are (`infinities`), until one of these is known:

* a call leaves it out, and all that it returns is finite: the value has no consequence;
* the backward begins at a finite result: a NaN cannot become a number again unless it is left out, by a call that is
  recorded or by one that is not, as an index is;
* the backward begins at the value, the step ends before anything leaves it out, or a call makes finite values of a NaN
  without leaving it out, as ``argmax`` does: the record is a finding.

An infinity that is too large a number for its type is a finding unless a recorded call leaves it out: a saturating
function makes a finite value of it, which is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.common.dump.naming import function_name
from probe.common.dump.reading.items import Item
from probe.common.nonfinite.bad_record import BadRecord
from probe.common.nonfinite.call_values import infinite_sign, is_nonfinite, mark_of
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has


@dataclass(eq=False)
class Candidate:
    """A record that may become a finding, and what came of it so far."""

    records: list[BadRecord]
    """The records to report, the first one first."""
    is_computed: bool
    """True if anything was computed of it, rather than handed on, asked for or left out."""
    is_beyond_type: bool
    """True if these are infinities that are too large numbers for their type."""
    passed: list[BadRecord] = field(default_factory=list)
    """The records that it came to."""
    open: set[Any] = field(default_factory=set)
    """Marks of tensors that no call has left out or used yet."""

    @property
    def place(self) -> int:
        """The number of its first record."""
        return self.records[0].place


class Candidates:
    """Those of one rank."""

    def __init__(self) -> None:
        self._all: list[Candidate] = []
        self._of_mark: dict[Any, Candidate] = {}
        self._of_record: dict[str, Candidate] = {}
        """By the records whose outputs belong to it."""
        self._numbers: dict[str, Candidate] = {}
        """By the records of those that returned a single number, as a loss is."""
        self.dismissed: list[str] = []
        """Records whose values had no consequence."""

    def of_items(self, items: Iterable[Item]) -> Candidate | None:
        """The first candidate that one of these tensors, which are not finite, belongs to."""
        found = (self._of_mark.get(mark_of(item)) for item in items)
        return min((each for each in found if each is not None), key=lambda each: each.place, default=None)

    def of_record(self, name: str) -> Candidate | None:
        """The candidate of which the outputs of a record are."""
        return self._of_record.get(name)

    def of_number(self, name: str) -> Candidate | None:
        """The candidate of the single number that a record has returned, as long as it was not reported."""
        candidate = self._numbers.get(name)
        return candidate if candidate in self._all else None

    def begin(
        self, records: Sequence[BadRecord], inputs: Sequence[Item], outputs: Sequence[Item], is_beyond_type: bool
    ) -> Candidate:
        """Follow what a record has made, or what came in with it.

        Args:
            records: what to report; the last one is the record of the tensors.
            inputs: the tensors that came in and are not finite.
            outputs: the tensors that it returned and that are not finite.
            is_beyond_type: whether these are numbers too large for their type.
        """
        record = records[-1]
        is_computed = not inputs or not leaves_it_at_that(record.name, bool(outputs))
        candidate = Candidate(list(records), is_computed, is_beyond_type)
        self._all.append(candidate)
        # Another call may take what came in, too.
        self._of_mark.update({mark_of(item): candidate for item in inputs})
        self._open(candidate, record.name, [*inputs, *outputs] if not is_computed else outputs)
        return candidate

    def go_on(self, candidate: Candidate, record: BadRecord, inputs: Sequence[Item], outputs: Sequence[Item]) -> bool:
        """A record had it among its inputs; whether it is a finding by that.

        Args:
            candidate: the one that came in.
            record: the record.
            inputs: its tensors that are not finite.
            outputs: what it returned and is not finite.
        """
        candidate.passed.append(record)
        function = function_name(record.name)
        if outputs:
            candidate.open.difference_update(map(mark_of, inputs))
            candidate.is_computed |= not has(function, Trait.HANDS_ON)
            self._open(candidate, record.name, outputs)
            return False
        if has(function, Trait.ASKS) or (has(function, Trait.HANDS_ON) and not has(function, Trait.LEAVES_OUT)):
            return False
        are_infinities = not candidate.is_beyond_type and all(map(infinite_sign, inputs))
        if not has(function, Trait.LEAVES_OUT) and not are_infinities:
            return True
        candidate.open.difference_update(map(mark_of, inputs))
        return False

    @property
    def are_there(self) -> bool:
        """True if there was one so far."""
        return bool(self._all)

    def leave_out(self, place: int) -> None:
        """Close each candidate that reached no record since number `place`: the calls between need not be recorded."""
        for candidate in self._all:
            last = candidate.passed[-1].place if candidate.passed else candidate.place
            if not candidate.is_beyond_type and last < place:
                candidate.open.clear()

    def take(self, candidate: Candidate) -> list[BadRecord]:
        """It is a finding: its records, and those that it came to."""
        self._all.remove(candidate)
        return [*candidate.records, *candidate.passed]

    @property
    def is_waiting(self) -> bool:
        """True if something may still come of a candidate."""
        return self.first_open() is not None

    def first_open(self) -> Candidate | None:
        """The first candidate of which something may still come."""
        return min(self._waiting(), key=lambda each: each.place, default=None)

    def _waiting(self) -> list[Candidate]:
        return [each for each in self._all if each.open and each.is_computed]

    def end(self) -> list[BadRecord]:
        """The step is over: the records of candidates that are findings, since nothing has left them out."""
        waiting = self._waiting()
        self.dismissed = [each.records[0].name for each in self._all if each not in waiting and each.is_computed]
        return [record for each in waiting for record in self.take(each)]

    def _open(self, candidate: Candidate, name: str, items: Iterable[Item]) -> None:
        self._of_record[name] = candidate
        items = list(items)
        if items and all(math.prod(item.shape or ()) == 1 for item in items):
            self._numbers[name] = candidate
        for item in items:
            mark = mark_of(item)
            self._of_mark[mark] = candidate
            candidate.open.add(mark)


def leaves_it_at_that(name: str, is_returned: bool) -> bool:
    """True if a call computes nothing of what is not finite in its inputs."""
    function = function_name(name)
    return has(function, Trait.HANDS_ON) or (not is_returned and has(function, Trait.LEAVES_OUT, Trait.ASKS))


def bad_items(items: Iterable[Item]) -> list[Item]:
    """The tensors that are not finite."""
    return [item for item in items if is_nonfinite(item)]
