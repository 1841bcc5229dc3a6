"""Reads the dump of one rank once and keeps what is not finite in it: some bytes for each such record.

Records without such a number are not decoded, but for communication, by which values come from other ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from probe.common.dump.layout import folder_of
from probe.common.dump.naming import BACKWARD, FORWARD, function_name, is_gradients, is_module, parse, record_name
from probe.common.dump.reading.call_tree import CallTree
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import Item, is_inf
from probe.common.dump.reading.records import Record
from probe.common.errors import MsprobeException
from probe.common.match.collectives import CollectiveCall, is_communication, receives
from probe.common.overflow.call_values import CallValues, is_nonfinite, part_of_limit
from probe.overflow.infinities import Infinities, Source

INPUT, PARAMETER, OUTPUT, EXPLAINED, UNWRITTEN = 1, 2, 4, 8, 16
"""What is not finite in a record: an input, a parameter, an output. `EXPLAINED`: another record of this rank, which
stands later in the file, made it. `UNWRITTEN`: its input is memory that was never written."""

MOST_RECORDS = 2000
"""Of a rank; where more are not finite, the others are counted."""
NEARLY_FULL = 0.9
"""The part of the largest number of a type from which on a value is told of."""
_MOST_NOTED = 20

_HALF = (b'"torch.float16"', b'"Float16"')
_LARGE_HALF = re.compile(rb"[56]\d{4}\.")
_LARGE = (b"e+3", b"e38", b"e308")
"""What stands in a record that has a number near the end of the range of its type; of half precision only where that
is there. The smallest types are left out."""
_NOT_FINITE = (b"NaN", b"Infinity", b'"nan"', b'"inf"', b'"-inf"')
"""As numbers that JSON lacks, or as texts."""



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
    mask: str = ""
    """The record that made the infinities, which were asked for, of which this one made something else."""


class Communication(NamedTuple):
    """A communication call, with what of its values is not finite."""

    call: CollectiveCall
    flags: int
    has_output: bool
    input: str
    output: str
    ends_after: int
    """The number of the record after which its result was there: its own, or where it was waited for."""


@dataclass
class RankScan:
    """What is not finite in one dump."""

    folder: str
    step: Optional[int]  # noqa: UP045 (evaluated, on Python 3.9 too)
    rank: int
    """0 where the folder names none."""
    framework: str
    level: str
    records: int
    bad: list[BadRecord] = field(default_factory=list)
    more: int = 0
    """How many further records hold a NaN or an infinity, if only as a norm."""
    communication: list[Communication] = field(default_factory=list)
    intended: list[str] = field(default_factory=list)
    uninitialised: list[str] = field(default_factory=list)
    nearly_full: list[tuple[str, float]] = field(default_factory=list)
    """Items that nearly reach the largest number of their type, and the part of it that they reach."""
    norms: list[str] = field(default_factory=list)
    """Outputs that are finite, and whose norm is not."""
    died: bool = False

    @property
    def affected(self) -> int:
        """How many records are not finite, those that were meant left out."""
        return len(self.bad) + self.more


def scan(path: str) -> RankScan:
    """What is not finite in the dump at `path`.

    Raises:
        FileCheckException: there is no dump.
        DumpFormatError: a file is damaged.
        MsprobeException: it has no statistics.
    """
    dump = read(path)
    if dump.task == "structure":
        raise MsprobeException(f"{dump.path}: task structure has no values; collect with task statistics or tensor.")
    rank = dump.rank or 0
    result = RankScan(folder_of(path), dump.step, rank, dump.framework, dump.level or "", len(dump), died=dump.died)
    return _Scan(dump, result).run()


class _Scan:
    def __init__(self, dump: Dump, result: RankScan) -> None:
        self._dump = dump
        self._result = result
        self._infinities = Infinities()
        self._is_reached = False
        """Whether a record before has made something that is not finite, so that anything may come of it."""
        self._unwritten: dict[tuple[object, object], str] = {}
        """Memory that was never written and is not finite: its record, by type and shape."""

    def run(self) -> RankScan:
        result = self._result
        ends: dict[int, str] = {}
        for index, record in enumerate(self._dump):
            content = record.content
            if is_communication(record.name):
                ends[index] = self._communication(index, record)
            elif content is None or any(map(content.__contains__, _NOT_FINITE)):
                if len(result.bad) < MOST_RECORDS:
                    self._record(index, record.name, CallValues.of(self._dump.items(record)))
                else:
                    result.more += 1
            if not self._is_reached and (content is None or _may_be_nearly_full(content)):
                self._note_nearly_full(self._dump.items(record))
        self._settle()
        self._set_ends(ends)
        if not result.bad and not result.communication:
            self._check_statistics()
        result.bad = _without_explained(result.bad, self._dump.tree) if result.bad else []
        return result

    # --- one call

    def _record(self, index: int, name: str, values: CallValues) -> None:
        bad_inputs = [item for item in values.inputs if is_nonfinite(item)]
        bad_parameters = [item for item in values.parameters if is_nonfinite(item)]
        bad_outputs = [item for item in values.outputs if is_nonfinite(item)]
        if not (bad_inputs or bad_parameters or bad_outputs):
            norms = [item.name for item in values.outputs if is_inf(item.norm)]
            self._result.norms += norms[: _MOST_NOTED - len(self._result.norms)]
            return
        if "empty" in function_name(name):
            # Memory that nobody has written to may hold anything.
            if bad_outputs:
                self._result.uninitialised.append(name)
                self._unwritten.update({(item.dtype, item.shape): name for item in bad_outputs})
            return
        flags = INPUT * bool(bad_inputs) | PARAMETER * bool(bad_parameters) | OUTPUT * bool(bad_outputs)
        unwritten = mask = ""
        if not self._is_reached:
            if flags == OUTPUT and self._infinities.begin(index, name, values):
                return
            if flags & ~OUTPUT == INPUT:
                sources = self._infinities.known(bad_inputs)
                if sources is not None:
                    culprit = self._infinities.use(sources, values)
                    if culprit is None:
                        return
                    if culprit.is_asked_for:
                        # The infinities were meant; what this call made of them was not.
                        flags, mask = OUTPUT, culprit.name or culprit.item
                    else:
                        self._add_source(culprit)
                else:
                    unwritten = self._unwritten_input(bad_inputs)
                    if unwritten and not bad_outputs:
                        return
                    flags |= UNWRITTEN * bool(unwritten)
        self._is_reached = True
        first_input = _first_name(bad_inputs) or _first_name(bad_parameters)
        self._result.bad.append(BadRecord(index, name, flags, first_input, _first_name(bad_outputs), unwritten, mask))

    def _unwritten_input(self, bad_inputs: list[Item]) -> str:
        found = [self._unwritten.get((item.dtype, item.shape), "") for item in bad_inputs]
        return found[0] if all(found) else ""

    def _communication(self, index: int, record: Record) -> str:
        """Returns the record after which its result was there, if the dump says so."""
        items = self._dump.items(record)
        call = CollectiveCall(self._result.rank, index, record.name, tuple(i for i in items if not i.is_tensor))
        ignored = receives(CollectiveCall(self._result.rank, index, record.name, tuple(items)))
        values = CallValues.of(item for item in items if item.name not in ignored)
        bad_input = _first_name(list(filter(is_nonfinite, values.inputs)))
        bad_output = _first_name(list(filter(is_nonfinite, values.outputs)))
        flags = INPUT * bool(bad_input) | OUTPUT * bool(bad_output)
        self._is_reached |= bool(flags)
        self._result.communication.append(
            Communication(call, flags, bool(values.outputs), bad_input, bad_output, index)
        )
        return record.waited_after or ""

    def _set_ends(self, ends: dict[int, str]) -> None:
        """Where the results of asynchronous communication arrived."""
        if not any(ends.values()):
            return
        numbers = {record.name: index for index, record in enumerate(self._dump)}
        self._result.communication = [
            each._replace(ends_after=numbers.get(ends[each.call.index], each.ends_after))
            for each in self._result.communication
        ]

    def _add_source(self, source: Source) -> None:
        self._result.bad.append(BadRecord(source.index, source.name, OUTPUT, "", source.item))

    # --- at the end

    def _settle(self) -> None:
        result = self._result
        for source in self._infinities.unsettled:
            self._add_source(source)
        result.intended = [source.name for source in self._infinities.intended]
        result.bad.sort(key=lambda record: record.place)

    def _note_nearly_full(self, items: list[Item]) -> None:
        found = self._result.nearly_full
        for item in items:
            if len(found) < _MOST_NOTED and item.is_tensor and (part := part_of_limit(item)) > NEARLY_FULL:
                found.append((item.name, part))

    def _check_statistics(self) -> None:
        """A dump of checksums alone says nothing of what is finite."""
        tensors = 0
        for record in self._dump:
            for item in self._dump.items(record):
                if item.is_tensor and item.shape != () and 0 not in (item.shape or ()):
                    if item.max is not None:
                        return
                    tensors += 1
            if tensors > 20:
                break
        if tensors:
            raise MsprobeException(
                f"{self._dump.path}: the tensors have no statistics; collect without summary_mode xor and checksums."
            )


def _may_be_nearly_full(content: bytes) -> bool:
    if any(map(content.__contains__, _LARGE)):
        return True
    return any(map(content.__contains__, _HALF)) and _LARGE_HALF.search(content) is not None


def _first_name(items: list[Item]) -> str:
    return items[0].name if items else ""


def _without_explained(bad: list[BadRecord], tree: CallTree | None) -> list[BadRecord]:
    """Mark what another record explains, which need not stand before it.

    The gradients of a module's parameters stand before its backward, its backward may stand before those of the calls
    inside of it, and what a forward call got or gave goes into its backward as well.
    """
    inside = {name for record in bad if tree is not None for name in tree.around(record.name)}
    backwards = {parsed.base: record.place for record in bad
                 if is_module(record.name) and (parsed := parse(record.name)) is not None
                 and parsed.direction == BACKWARD}  # fmt: skip
    names = {record.name for record in bad}
    found = []
    for record in bad:
        flags = record.flags
        parsed = parse(record.name)
        if is_gradients(record.name):
            if parsed is not None and backwards.get(parsed.base, -1) > record.place:
                flags |= EXPLAINED
        elif flags == OUTPUT and record.name in inside:
            flags |= EXPLAINED
        elif (
            parsed is not None
            and parsed.direction == BACKWARD
            and record_name(parsed._replace(direction=FORWARD)) in names
        ):
            flags |= INPUT
        found.append(record._replace(flags=flags))
    return found

