"""Reads the dump of one rank once and keeps what is not finite in it: some bytes for each such record.

Records without such a number are not decoded, but for communication, by which values come from other ranks.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from probe.common import log
from probe.common.collectives.collectives import (
    CollectiveCall,
    collective_call,
    is_communication,
    meaningful,
    without_statistics,
)
from probe.common.dump import naming
from probe.common.dump.layout import folder_of
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import Item, is_inf
from probe.common.dump.reading.records import Record
from probe.common.errors import DumpFormatError, MsprobeException
from probe.common.nonfinite.call_values import (
    CallValues,
    infinite_sign,
    is_masked_by_lowest,
    is_nonfinite,
    is_number,
    part_of_limit,
)
from probe.common.nonfinite.followed_calls import FollowedCalls
from probe.common.nonfinite.lineages import BadRecord, mark_explained
from probe.common.numerics.formats import FORMATS, TABLE
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

MOST_RECORDS = 2000
"""The largest number of records of a rank; if more are not finite, the others are counted."""
NEARLY_FULL = 0.9
"""The part of the largest number of a type from which on a value is told of."""
LEAST_SCALE, MOST_SKIPS = 1.0, 20
"""A gradient scaler that skips a step at a smaller scale is reported, and so is one that skips so many in a row; the
defaults of the settings ``min_scale`` and ``max_skips`` of the task that watches while training."""
_UNSCALES, _SCALER = "reciprocal", "grad_scaler.py"
"""The function that a gradient scaler calls before it decides on a step, and the file that calls it."""
_MOST_NOTED = 20
"""Items that are kept for notes; a guess."""

_HALF = tuple(
    f'"{name}"'.encode()
    for line in TABLE
    if line.largest == FORMATS["float16"].largest
    for name in (f"torch.{line.name}", line.mindspore)
    if name
)
_LARGE_HALF = re.compile(rb"[56]\d{4}\.")
_LARGE = (b"e+3", b"e38", b"e308")
"""The bytes in a record that has a number near the end of the range of its type; those of half precision only if it is
there. The smallest types are left out."""
_NOT_FINITE = (b"NaN", b"Infinity", b'"nan"', b'"inf"', b'"-inf"')
"""The values as numbers that JSON lacks, or as texts."""


class Communication(NamedTuple):
    """A communication call, with what of its values is not finite."""

    call: CollectiveCall
    inputs: tuple[str, ...]
    """The inputs that are not finite; buffers that it only fills are left out."""
    outputs: tuple[str, ...]
    """The outputs that are not finite; those that mean nothing are left out."""
    has_output: bool
    ends_after: int
    """The number of the record after which its result was there: its own, or where it was waited for."""
    masked_inputs: tuple[str, ...] = ()
    """Inputs of minus infinity that may be meant; they are none of `inputs`."""
    masked_outputs: tuple[str, ...] = ()
    masks: tuple[BadRecord, ...] = ()
    """The calls that made the infinities among its inputs, which are to blame where they were not meant."""


@dataclass
class RankScan:
    """The values of one dump that are not finite."""

    folder: str
    step: Optional[int]  # noqa: UP045 (evaluated, on Python 3.9 too)
    rank: int
    """0 where the folder names none; of a process without a rank, the number by which it is known."""
    framework: str
    level: str
    records: int
    bad: list[BadRecord] = field(default_factory=list)
    process: str = ""
    """``proc123`` of a process without a rank."""
    more: int = 0
    """The number of further records that hold a NaN or an infinity, if only as a norm."""
    communication: list[Communication] = field(default_factory=list)
    intended: list[str] = field(default_factory=list)
    uninitialised: list[str] = field(default_factory=list)
    meant: Counter[str] = field(default_factory=Counter)
    """The number of outputs of functions, or of modules if no function is recorded, that have ``-inf``, ``inf`` or
    ``NaN`` and are no finding."""
    nearly_full: list[tuple[str, float]] = field(default_factory=list)
    """Items that nearly reach the largest number of their type, and the part of it that they reach."""
    norms: list[str] = field(default_factory=list)
    """Outputs that are finite, and whose norm is not."""
    is_skipped: bool = False
    """True if a gradient scaler has skipped the step for gradients that are not finite, which is no finding."""
    ending: str = ""
    """The reason why the end of the run is missing, as the end of a sentence; empty if it is not."""
    first_backward: int = sys.maxsize
    """The number of the first record of a backward."""

    @property
    def affected(self) -> int:
        """The number of records that are not finite, without those that were meant."""
        return len(self.bad) + self.more

    @property
    def name(self) -> str:
        """``rank 3`` or ``proc123``."""
        return self.process or f"rank {self.rank}"


def scan(task: tuple[str, int | None], skips_count: bool = False) -> RankScan:
    """Find the values of a dump that are not finite.

    Args:
        task: The path of the dump, and the number by which the process is known; ``None`` if that is its rank.
        skips_count: True if gradients count for which a gradient scaler has skipped the step.

    Raises:
        FileCheckException: there is no dump.
        DumpFormatError: a file is damaged.
        MsprobeException: it has no statistics.
    """
    path, number = task
    dump = read(path)
    if dump.task == "structure":
        raise MsprobeException(f"{dump.path}: task structure has no values; collect with task statistics or tensor.")
    result = _nothing_yet(dump, (dump.rank or 0) if number is None else number)
    if number is not None:
        result.process = os.path.basename(result.folder)
    return _Scan(dump, result, skips_count).run()


def scan_dump(dump: Dump) -> RankScan:
    """Find the values that are not finite in a dump that was read.

    Raises:
        DumpFormatError: a record is damaged.
        MsprobeException: it has no statistics.
    """
    return _Scan(dump, _nothing_yet(dump, dump.rank or 0), False).run()


class Makers:
    """The makers that a dump records of its tensors; a damaged file of makers costs no answer."""

    def __init__(self) -> None:
        self._are_there = True

    def __call__(self, item: Item) -> str | None:
        try:
            return item.made_by if self._are_there else None
        except DumpFormatError as error:
            self._are_there = False
            log.warning(str(error), once="damaged-makers")
            return None


def _nothing_yet(dump: Dump, rank: int) -> RankScan:
    return RankScan(
        folder_of(dump.path), dump.step, rank, dump.framework, dump.level or "", len(dump), ending=dump.ending
    )


class _Scan:
    def __init__(self, dump: Dump, result: RankScan, skips_count: bool) -> None:
        self._skips_count = skips_count
        self._dump = dump
        self._result = result
        self._makers = Makers()
        self._calls = FollowedCalls(self._makers)
        self._outputs: list[tuple[str, str]] = []
        """Outputs that are not finite: the record, and ``-inf``, ``inf`` or ``NaN``."""

    def run(self) -> RankScan:
        result = self._result
        ends = self._follow()
        if result.bad and not self._skips_count and self._scale() >= LEAST_SCALE:
            # The scaler skips the step for such gradients, and what clips or measures them is given them.
            before = len(result.bad)
            self._calls = FollowedCalls(self._makers)
            self._calls.ignores_gradients = True
            result.communication, result.more, result.nearly_full, result.norms = [], 0, [], []
            self._outputs = []
            ends = self._follow()
            result.is_skipped = len(result.bad) < before
        result.intended, result.uninitialised = self._calls.intended, self._calls.uninitialised
        self._set_ends(ends)
        if not result.bad and not result.communication:
            self._check_statistics()
        bad = {record.name for record in result.bad}
        meant = [(name, value) for name, value in self._outputs if name not in bad]
        of_functions = [each for each in meant if not naming.is_module(each[0])]
        result.meant = Counter(value for _, value in of_functions or meant)
        result.bad = mark_explained(result.bad, self._dump.tree)
        return result

    def _scale(self) -> float:
        """The scale of the gradient scaler that skips the step for its gradients; 0 if none does."""
        # A scaler takes the reciprocal of its scale once the gradients are there.
        for record in self._dump:
            if naming.function_name(record.name) == _UNSCALES and naming.is_forward(record.name):
                frames = (self._dump.stacks or {}).get(record.name, [])[:1]
                scale = next((item.max for item in self._dump.items(record) if item.is_tensor), None)
                if scale is not None and is_number(scale) and any(_SCALER in frame for frame in frames):
                    return float(scale)
        return 0.0

    def _follow(self) -> dict[int, str]:
        """Go through the records; where the results of asynchronous communication arrived."""
        result = self._result
        ends: dict[int, str] = {}
        for index, record in enumerate(self._dump):
            content = record.content
            self._calls.pass_by(index, record.name)
            if result.first_backward == sys.maxsize and naming.is_backward(record.name):
                result.first_backward = index
            if is_communication(record.name):
                ends[index] = self._communication(index, record)
            elif content is None or any(map(content.__contains__, _NOT_FINITE)):
                if len(self._calls.bad) < MOST_RECORDS:
                    self._record(index, record)
                else:
                    result.more += 1
            if not self._calls.is_reached and (content is None or _may_be_nearly_full(content)):
                self._note_nearly_full(self._dump.items(record))
        result.bad = self._calls.end([record.name for record in self._dump])
        return ends

    # --- one call

    def _record(self, index: int, record: Record) -> None:
        values = CallValues.of(self._dump.items(record))
        if naming.is_forward(record.name) and not has(naming.function_name(record.name), Trait.UNWRITTEN):
            signs = ((infinite_sign(item), item) for item in values.outputs if is_nonfinite(item))
            self._outputs += [(record.name, str(sign * math.inf) if sign else "NaN") for sign, _ in signs]
        if not self._calls.look_at(index, record.name, values):
            norms = [item.name for item in values.outputs if is_inf(item.norm) and not is_masked_by_lowest(item)]
            self._result.norms += norms[: _MOST_NOTED - len(self._result.norms)]

    def _communication(self, index: int, record: Record) -> str:
        """Returns the record after which its result was there, if the dump says so."""
        call = collective_call(self._result.rank, index, record)
        values = CallValues.of(meaningful(call))
        passed = self._calls.communicate(index, record.name, values.inputs, values.outputs)
        self._result.communication.append(Communication(
            without_statistics(call), passed.inputs, passed.outputs, bool(values.outputs), index, passed.masked_inputs,
            passed.masked_outputs, passed.masks,
        ))  # fmt: skip
        return record.waited_after or ""

    def _set_ends(self, ends: dict[int, str]) -> None:
        """Note where the results of asynchronous communication arrived."""
        if not any(ends.values()):
            return
        numbers = {record.name: index for index, record in enumerate(self._dump)}
        self._result.communication = [
            each._replace(ends_after=numbers.get(ends[each.call.index], each.ends_after))
            for each in self._result.communication
        ]

    # --- at the end

    def _note_nearly_full(self, items: list[Item]) -> None:
        found = self._result.nearly_full
        for item in items:
            if len(found) == _MOST_NOTED:
                return
            if item.is_tensor and (part := part_of_limit(item)) > NEARLY_FULL and not is_masked_by_lowest(item):
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
