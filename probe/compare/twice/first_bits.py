"""The calls of two runs of one program that have other bits by themselves, in the order in which they were made.

`compare` says where two runs differ by more than rounding. Here every bit counts: of a call whose arguments have the
same bits in both runs and whose result has others, the call is the cause, and rounding excuses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import Optional

from probe.common.align.calls import Row
from probe.common.collectives.collectives import CollectiveCall, is_communication, receives, undefined
from probe.common.dump.naming import FORWARD, PARAMETERS_GRAD
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import Item
from probe.common.dump.stack_text import short_frame, users_line
from probe.common.numerics.error_bounds import is_xor, relative_difference
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has, writes_in_place
from probe.compare.comparison import ComparedDumps, PairTask, compare_pair
from probe.compare.judgement import is_equal, item_words
from probe.compare.result import Mode
from probe.compare.summary import ROUNDED
from probe.compare.verdict.facts import Call, goes_in, is_parameter
from probe.compare.verdict.findings import own_name
from probe.compare.verdict.two_runs import Origin, Source, TwoRuns

_MOST = 6
"""Calls that are kept of a pair of dumps: the first, and five that differ by themselves as well."""
_DRAWING = (Trait.DRAWS, Trait.DROPS, Trait.DRAWS_INSIDE, Trait.MAY_DROP_INSIDE)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""The address in the text of an object, which is another one in each process."""


class How(Enum):
    """The way in which a call has other bits."""

    RESULT = "result"
    """Its arguments have the same bits, and its result has others."""
    DRAW = "draw"
    """The same of a function that draws random numbers."""
    ARGUMENT = "argument"
    """A plain argument, such as a number, has another value."""
    PARAMETER = "parameter"
    """It takes a parameter with other bits, which no recorded call made."""
    BUFFER = "buffer"
    GRADIENT = "gradient"
    DATA = "data"
    """It takes a tensor with other bits that no recorded call made, such as a batch."""
    UNRECORDED = "unrecorded"
    """It takes a tensor with other bits that a recorded call may have made, and that something unrecorded changed."""
    UNWRITTEN = "unwritten"
    """It takes memory to which nothing was written."""
    ONE_SIDE = "one side"
    """One run alone made the call."""
    OTHER_MAKER = "other maker"
    """It takes what another call made: a branch of the program, or a number of calls, differs."""


_BY_ORIGIN = {
    Origin.PARAMETER: How.PARAMETER,
    Origin.BUFFER: How.BUFFER,
    Origin.GRADIENT: How.GRADIENT,
    Origin.DATA: How.DATA,
}


@dataclass(frozen=True)
class OtherBits:
    """A call that has other bits in the second run by itself."""

    how: How
    record: str
    """The record of the first run; of the second where the first did not make the call."""
    module: str
    """The path of the module around the call, or its own; empty where there is none."""
    function: str
    """The function's own name; the class of a module."""
    is_module: bool
    is_forward: bool
    item: str = ""
    """The input or output, such as ``output 0``; empty where one run alone made the call."""
    item_name: str = ""
    """Its name in the dump."""
    source: str = ""
    """The parameter or buffer, or the record whose result was changed."""
    values: tuple[str, str] = ("", "")
    """The values of a plain argument in both runs, or the records that made what the call takes."""
    distance: Optional[float] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The relative difference of the two tensors; ``None`` where it is not known."""
    same_statistics: bool = False
    """True if maximum, minimum, mean and norm of both tensors agree."""
    checksum: str = ""
    """The checksum of the first run's tensor."""
    communicates: bool = False
    """True if what it returns comes from other ranks."""
    place: int = 0
    """The number of calls before it."""
    line: str = ""
    """The line of the program that made the call."""


@dataclass(frozen=True)
class RepeatedPair:
    """The records of one process in one step, as two runs of a program made them."""

    step: str
    label: str
    paths: tuple[str, str]
    """The files of both runs."""
    mode: Mode
    checksum: str
    """The kind of checksum, ``md5`` or ``xor``; empty without."""
    records: int
    tensors: int
    differing: int
    """The number of tensors that have other bits."""
    found: list[OtherBits] = field(default_factory=list)
    """The first call that has other bits by itself, and the next ones."""
    ended: list[str] = field(default_factory=list)
    """The runs that lack the last records of the other one, in words."""


def compare_bits(task: PairTask, watch: object = None) -> RepeatedPair:
    """Compare two dumps bit for bit.

    Raises:
        MsprobeException: they cannot be compared.
    """
    compared = compare_pair(task)
    rows = compared.result.rows
    mode = compared.result.mode
    tensors = [row for row in rows if _is_tensor(row.target) or _is_tensor(row.golden)]
    sums = (item.md5 for row in rows for item in (row.target,) if item is not None and item.md5 is not None)
    first_sum = next(sums, "")
    return RepeatedPair(
        task.pair.step,
        task.pair.label,
        (compared.result.target, compared.result.golden),
        mode,
        "" if not first_sum else "xor" if is_xor(first_sum) else "md5",
        len(compared.calls[0]),
        len(tensors),
        sum(has_other_bits(row) for row in tensors),
        own_calls(compared),
        [str(end) for end in compared.result.truncations if end.more],
    )


def has_other_bits(row: Row) -> bool:
    """True if the two items of a row are not the same, as far as the dumps tell: tensors bit for bit, plain values."""
    target, golden = row.target, row.golden
    if target is golden:
        return not row.judged or bool(row.relative_difference)
    if target is None or golden is None:
        return True
    if target.is_tensor and golden.is_tensor:
        if target.md5 is not None and golden.md5 is not None:
            return target.md5 != golden.md5
        return target.shape != golden.shape or target.dtype != golden.dtype or not is_equal(row)
    mine, theirs = (_ADDRESS.sub("", str(item.value)) for item in (target, golden))
    return mine != theirs


def _is_tensor(item: Item | None) -> bool:
    return item is not None and item.is_tensor


def own_calls(compared: ComparedDumps) -> list[OtherBits]:
    """The first calls that have other bits by themselves, in the order in which they were made."""
    runs = compared.seen.runs
    if runs is None:
        return []
    return list(islice(_BitWalk(runs, compared).found(), _MOST))


class _BitWalk:
    """Goes through the calls in the order in which they were made."""

    def __init__(self, runs: TwoRuns, compared: ComparedDumps) -> None:
        self._runs, self._stacks = runs, compared.result.stacks or {}
        self._golden_stacks = compared.result.golden_stacks or {}
        self._unwritten: set[str] = set()
        """The items that may hold memory to which nothing was written."""
        self._differing: set[str] = set()
        """The records of the calls that had other bits so far, and of the modules around them."""

    def found(self) -> Iterator[OtherBits]:
        """The calls that have other bits by themselves: each that nothing before it explains."""
        for call in self._runs.calls:
            if not call.is_of_both:
                found = None if self._differing else self._of(How.ONE_SIDE, call)
            else:
                rows = [row for row in call.rows if has_other_bits(row)]
                meaningless = self._meaningless(call) if rows else ()
                rows = [row for row in rows if id(row) not in meaningless]
                found = self._of_call(call, rows) if rows else None
                if found is not None and self._differing and not self._is_own(call, found):
                    found = None
                if not rows:
                    continue
            if found is not None:
                yield found
            if found is not None or self._differing:
                self._differing.update((call.name, *around(self._runs.trees[int(call.record is None)], call.name)))

    def _is_own(self, call: Call, found: OtherBits) -> bool:
        """True if nothing that differed before can be the cause: a backward has what its forward kept for it."""
        if found.how not in _ALWAYS_OWN or call.direction == PARAMETERS_GRAD or call.name in self._differing:
            return False
        forward = None if call.is_forward else self._runs.in_direction(call, FORWARD)
        return call.is_forward or (forward is not None and forward.name not in self._differing)

    def _meaningless(self, call: Call) -> set[int]:
        """The rows of a call whose content says nothing: what the call fills without having read it."""
        if is_communication(call.name):
            items = tuple(row.target for row in call.rows if row.target is not None)
            one = CollectiveCall(0, call.index, call.name, items)
            names = receives(one) | undefined(one, items)
            return {id(row) for row in call.rows if row.target is not None and row.target.name in names}
        if has(call.function, Trait.OVERWRITES):
            return {id(row) for row in call.inputs if own_name(row) == "input.0"}
        return set()

    def _of_call(self, call: Call, rows: Sequence[Row]) -> OtherBits | None:
        given, returned = [row for row in rows if goes_in(row)], [row for row in rows if not goes_in(row)]
        if has(call.function, Trait.UNWRITTEN):
            self._note_unwritten(returned)
            return None
        if given:
            return self._of_inputs(call, given, returned)
        returned = [row for row in returned if not self._is_unwritten(row)]
        if not returned:
            return None
        draws = has(call.function, *_DRAWING) and call.is_forward
        return self._of(How.DRAW if draws else How.RESULT, call, returned[0])

    def _of_inputs(self, call: Call, given: Sequence[Row], returned: Sequence[Row]) -> OtherBits | None:
        if all(self._is_unwritten(row) for row in given):
            if returned and (has(call.function, Trait.HANDS_ON) or writes_in_place(call.function)):
                self._note_unwritten(returned)
                return None
            # What is computed of it may be thrown away; a result that has the same bits shows no effect.
            return self._of(How.UNWRITTEN, call, given[0]) if returned else None
        row = next(row for row in given if not self._is_unwritten(row))
        if not _is_tensor(row.target) or not _is_tensor(row.golden):
            return self._of(How.ARGUMENT, call, row)
        mine, theirs = (self._maker(row, side) for side in (0, 1))
        if mine is not None and theirs is not None and mine is not theirs:
            names = mine.record or "", theirs.golden_record or ""
            return replace(self._of(How.OTHER_MAKER, call, row), values=names)
        source = self._source(row)
        how = _BY_ORIGIN.get(source.origin, How.UNRECORDED)
        if is_parameter(row):
            how = How.PARAMETER
        return self._of(how, call, row, source.name if how in _BY_ORIGIN.values() else source.record or "")

    def _maker(self, row: Row, side: int) -> Call | None:
        """The call that made the tensor of the first (side 0) or the second run; ``None`` where none is known."""
        item = row.golden if side else row.target
        return None if item is None else self._runs.maker(item, side)

    def _source(self, row: Row) -> Source:
        assert row.target is not None
        return self._runs.graphs[0].source(row.target)

    def _is_unwritten(self, row: Row) -> bool:
        if not self._unwritten or row.target is None or not row.target.is_tensor:
            return False
        return self._source(row).name in self._unwritten

    def _note_unwritten(self, rows: Sequence[Row]) -> None:
        self._unwritten |= {row.target.name for row in rows if row.target is not None}

    def _of(self, how: How, call: Call, row: Row | None = None, source: str = "") -> OtherBits:
        target, golden = (None, None) if row is None else (row.target, row.golden)
        values = tuple(str(None if item is None else item.value) for item in (target, golden))
        stack = self._stacks.get(call.record or "") or self._golden_stacks.get(call.golden_record or "") or []
        return OtherBits(
            how,
            call.name,
            self._runs.module_name(call),
            call.function,
            call.is_module,
            call.is_forward,
            "" if row is None else item_words(own_name(row)),
            "" if target is None else target.name,
            source,
            (values[0], values[1]) if how is How.ARGUMENT else ("", ""),
            None if row is None else row.relative_difference,
            _have_same_statistics(target, golden),
            (target.md5 or "") if target is not None else "",
            is_communication(call.name),
            call.index,
            short_frame(users_line(stack)) if stack else "",
        )


_ALWAYS_OWN = (How.RESULT, How.DRAW, How.ARGUMENT)
"""The ways in which a call differs by itself, whatever differed before it."""


def _have_same_statistics(target: Item | None, golden: Item | None) -> bool:
    """True if the statistics of two tensors agree, which sums in another order round otherwise."""
    if target is None or golden is None or target.max is None or target.shape != golden.shape:
        return False
    pairs = ((target.max, golden.max), (target.min, golden.min), (target.mean, golden.mean), (target.norm, golden.norm))
    # Of whole numbers another checksum alone makes the relative difference that of other values.
    are_equal = all(mine is not None and mine == theirs for mine, theirs in pairs)
    return are_equal or relative_difference(target, golden) <= ROUNDED
