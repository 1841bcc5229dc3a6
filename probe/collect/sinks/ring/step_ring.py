"""The records of a step that is watched: in memory, as many as the configuration allows, and written if need be."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from probe.backends.protocol import Tensors
from probe.collect.describing.values import Suspects
from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.common.callstack import CallStacks
from probe.common.collectives.collectives import collective_call, is_communication, meaningful
from probe.common.dump import journal as journals
from probe.common.dump.naming import is_gradients
from probe.common.dump.reading.call_tree import CallTree
from probe.common.dump.reading.items import flatten
from probe.common.dump.reading.records import Record
from probe.common.interfaces import Entry
from probe.common.nonfinite.call_values import CallValues, fills
from probe.common.nonfinite.followed_calls import FollowedCalls, is_of_backward
from probe.common.nonfinite.lineages import EXPLAINED, INPUT, PARAMETER, BadRecord, mark_explained

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


# --- step ring


class StepRing:
    """Keeps the records of one step.

    While all is well the oldest records make room for new ones; once there is one to report, those around it stay.

    Args:
        step: The step's number.
        most: The records that are kept.
        tensors: The framework.
        suspects: What is not finite in the records.
        stacks: What the records refer to by number.
        rank: The rank of this process.
    """

    def __init__(
        self, step: int, most: int, tensors: Tensors, suspects: Suspects, stacks: CallStacks, rank: int = 0
    ) -> None:
        self.step = step
        self.frames: list[Frame] = []
        self.left_out = 0
        """Records that had to make room, or found none."""
        self.judgement = Judgement(rank)
        self._most = most
        self._tensors = tensors
        self._suspects = suspects
        self._stacks = stacks
        self._judged = 0
        """The number of frames that were looked at."""
        # Not a plain lock: a signal's function can come here in the middle.
        self._one_at_a_time = threading.RLock()
        self._part = (most + 1) // 2
        self._reported: FirstRecord | None = None
        """The finding to report, and the end of the frames that are kept for it."""
        self._end = 0

    # --- while the step goes on

    def add(self, frame: Frame) -> None:
        self.frames.append(frame)
        if len(self.frames) >= self._most:
            with self._one_at_a_time:
                self._make_room()

    def _make_room(self) -> None:
        if len(self.frames) < self._most:
            return  # another thread has made it
        self.look_at_new()
        first = self.judgement.first
        if first is None:
            self._leave_out(0, self._part)
        elif first != self._reported:
            # What led there, and half as many records of what came of it; others are still looked at.
            self._reported, self._end = first, len(self.frames) + self._part
            self._most = self._end + self._part
        else:
            self._leave_out(self._end, len(self.frames))

    def _leave_out(self, begin: int, end: int) -> None:
        left_out = max(end - begin, 0)
        self.left_out += left_out
        self._judged -= left_out
        del self.frames[begin:end]

    def look_at_new(self) -> None:
        """Look at every record so far, which on a device waits for the statistics."""
        if self._tensors.pending():
            self._tensors.resolve()
        new = self.frames[self._judged :]
        self._judged += len(new)
        self.judgement.look_at(new, self._suspects.all())

    def end(self) -> None:
        """The step is over: look at the rest of its records."""
        self.look_at_new()
        self.judgement.end()

    def has_records(self) -> bool:
        return any(frame.rule is not None for frame in self.frames)

    # --- once it is to be written

    def write(self, folder: DumpFolder) -> None:
        """Write the records into `folder` as if they had been written there one by one."""
        if self._reported is not None and self.judgement.first in (None, self._reported):
            self._leave_out(self._end, len(self.frames))
        journal = folder.journal
        for name, begun, stack, parent, order, rule, fields in self.frames:
            if stack >= 0:
                journal.stack(stack, self._stacks)
            if rule is None:
                journal.node(name, begun, stack, parent)
            else:
                journal.record(name, begun, stack, parent, order, rule, fields)
        folder.write_files()
