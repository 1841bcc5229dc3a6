"""The first record of a running step with a value that is not finite and was not meant to be.

The rule is that of ``overflow_check`` afterwards (`probe.common.nonfinite`): it is told of the same records in the same
order, but as they come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from probe.common.collectives.collectives import collective_call, is_communication, meaningful
from probe.common.dump import journal as journals
from probe.common.dump.naming import is_gradients
from probe.common.dump.reading.call_tree import CallTree
from probe.common.dump.reading.flattening import flatten
from probe.common.dump.reading.records import Record
from probe.common.interfaces import Entry
from probe.common.nonfinite.bad_record import EXPLAINED, INPUT, PARAMETER, BadRecord, mark_explained
from probe.common.nonfinite.call_values import CallValues, fills
from probe.common.nonfinite.followed_calls import FollowedCalls, is_of_backward

_MOST_BAD = 2000
"""Records that are looked at once something is not finite; what made it is among the first."""


class Frame(NamedTuple):
    """The arguments of `JournalWriter.record`; those of `JournalWriter.node` where `rule` is ``None``."""

    name: str
    begun: int
    stack: int
    parent: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    order: int
    rule: Optional[int]  # noqa: UP045
    fields: Any


@dataclass(frozen=True)
class FirstRecord:
    """A record with a value that is not finite."""

    name: str
    where: str
    """``input``, ``output``, ``parameters`` or ``gradient``."""


class Judgement:
    """Follows one step record by record.

    Args:
        rank: The rank of this process, 0 in a program without ranks.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._followed = _Followed(FollowedCalls())
        self._forward: _Followed | None = None
        """The calls as they are where gradients may be infinite, followed apart from the first bad gradient on."""
        self._leaves_out_backward = False
        self._in_backward = False
        """True if a record of the backward was seen."""
        self._count = 0
        """The records so far."""
        self._names: list[str] = []
        """The names of the last of them, as far as they are needed."""
        self._tree = CallTree()
        """The calls around records that are not finite, as far as they have ended."""

    @property
    def first(self) -> FirstRecord | None:
        """The first record; until `end`, it may still turn out to be of no consequence."""
        followed = self._forward if self._leaves_out_backward and self._forward is not None else self._followed
        return followed.first(self._tree)

    def leave_out_backward(self) -> None:
        """Gradients may be infinite in this step, and what clips or measures them with them."""
        self._leaves_out_backward = True

    def look_at(self, frames: Sequence[Frame], suspects: Sequence[Entry]) -> None:
        """Go through further frames; `suspects` are the entries of the step so far that are not finite."""
        if not suspects and not any(frame.rule is not None and fills(frame.name) for frame in frames):
            # Where a call fills a tensor, what it wrote may show in the next frames alone.
            for frame in frames:
                self._pass_by(frame)
                self._count += 1
            return
        bad = {id(entry) for entry in suspects}
        for frame in _as_in_a_dump(frames):
            self._names.append(frame.name if frame.rule is not None else "")
            if frame.name in self._tree:
                self._note_parent(frame)
            self._pass_by(frame)
            is_record = frame.rule is not None and isinstance(frame.fields, dict)
            if is_record and (_holds(frame.fields.values(), bad) or fills(frame.name)):
                self._look_at(frame)
            self._count += 1
        if self._followed.calls.is_settled and (self._forward is None or self._forward.calls.is_settled):
            self._names = []

    def _pass_by(self, frame: Frame) -> None:
        if frame.rule is not None:
            self._in_backward = self._in_backward or is_of_backward(frame.name)
            for followed in filter(None, (self._followed, self._forward)):
                followed.calls.pass_by(self._count, frame.name)

    def _look_at(self, frame: Frame) -> None:
        self._note_parent(frame)
        if self._in_backward and self._forward is None:
            self._forward = _Followed(self._followed.calls.without_gradients())
        items = flatten(frame.name, frame.fields)
        if is_communication(frame.name):
            record = Record(frame.name, frame.fields, "")
            items = meaningful(collective_call(self._rank, self._count, record))
        values = CallValues.of(items)
        for followed in filter(None, (self._followed, self._forward)):
            followed.take(self._count, frame.name, values, self._in_backward)

    def _note_parent(self, frame: Frame) -> None:
        self._tree[frame.name] = frame.parent
        if frame.parent is not None:
            # Modules stand behind what is inside of them.
            self._tree.setdefault(frame.parent, None)

    def end(self) -> None:
        """All records of the step were shown."""
        names = [""] * (self._count - len(self._names)) + self._names
        for followed in filter(None, (self._followed, self._forward)):
            followed.calls.end(names)
            followed.is_over = True


class _Followed:
    """The calls of this process, and those by which ranks exchange values among them."""

    def __init__(self, calls: FollowedCalls) -> None:
        self.calls = calls
        self.is_over = False
        """True if all records of the step were shown, so that nothing is waited for any more."""
        self._exchanged: BadRecord | None = None
        """The first exchange by which something came in, or was given, that is not finite and no mask."""

    def take(self, index: int, name: str, values: CallValues, in_backward: bool) -> None:
        if is_communication(name):
            if in_backward and self.calls.ignores_gradients:
                return
            passed = self.calls.communicate(index, name, values.inputs, values.outputs)
            if self._exchanged is None and (passed.inputs or passed.outputs):
                self._exchanged = BadRecord(index, name, INPUT if passed.inputs else 0)
        elif len(self.calls.bad) < _MOST_BAD:
            self.calls.look_at(index, name, values)

    def first(self, tree: CallTree) -> FirstRecord | None:
        calls, waiting = self.calls, [] if self.is_over else self.calls.waiting
        bad = mark_explained(sorted(calls.bad or waiting, key=lambda record: record.number), tree)
        found = [record for record in bad if not record.flags & EXPLAINED][:1]
        found += [] if self._exchanged is None else [self._exchanged]
        if not found:
            return None
        record = min(found, key=lambda record: record.number)
        return FirstRecord(record.name, _where(record))


def _where(record: BadRecord) -> str:
    if is_gradients(record.name):
        return "gradient"
    if record.flags & PARAMETER:
        return "parameters"
    return "input" if record.flags & INPUT else "output"


def _as_in_a_dump(frames: Sequence[Frame]) -> list[Frame]:
    """Frames in the order and form in which a dump has the records that are made of them."""
    records: dict[str, Frame] = {}
    nodes = []
    for frame in frames:
        known = records.get(frame.name)
        if frame.rule is None:
            nodes.append(frame)
        elif known is None or frame.rule == journals.MOVE:
            records[frame.name] = frame
        elif frame.rule == journals.ADD:
            records[frame.name] = known._replace(fields={**known.fields, **frame.fields})
        else:
            records[frame.name] = frame._replace(order=known.order)
    return sorted([*nodes, *records.values()], key=lambda frame: frame.order)


def _holds(values: Iterator[Any] | Collection[Any], bad: Collection[int]) -> bool:
    """True if one of the tensors among the values of a record is among those whose entries are `bad`."""
    for value in values:
        if type(value) is dict:
            if id(value) in bad or ("Max" not in value and _holds(value.values(), bad)):
                return True
        elif type(value) is list and _holds(value, bad):
            return True
    return False
