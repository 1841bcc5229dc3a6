"""The values that a difference reaches, looked up by statistics.

Two programs that are not the same program differ in many places that change nothing: a mask of another type, a range
that begins elsewhere, calls inside a module that computes the same in another way. Such a place is no divergence where
the module around it returns the same, or where the first call that takes its result returns the same.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from probe.common.align.row import Row
from probe.common.dump.naming import is_forward, is_module, parse
from probe.common.dump.reading.call_tree import around as modules_around
from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import extent, is_same, rounding
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.peers.random_error import is_told_exactly
from probe.compare.divergence.propagated_error import PropagatedError

Key = tuple[Any, ...]
Indexes = dict[Key, list[int]]
TARGET, GOLDEN = 0, 1

_CARRIED_ON = 2.0
"""The largest difference of two results that agree, as a multiple of the existing difference; an effect shows next to
it."""


class Agreement(enum.Enum):
    """The sense in which two results agree."""

    NEARLY = "within what runs differ by already, and rounding"
    SHOWN = "the dumps say the same of them"
    PROVEN = "the dumps say the same of them, and would say of any difference that a result can have"


class Effects:
    """Follows what calls return to the calls that take it.

    Args:
        calls: all calls of both runs, in order.
        trees: the call trees of target and golden side.
        error: how far the runs differed so far.
    """

    def __init__(self, calls: Sequence[AlignedCall], trees: tuple[Tree, Tree], error: PropagatedError) -> None:
        self._calls = calls
        self._trees = trees
        self._tree = trees[TARGET]
        self._error = error

    @cached_property
    def _index_of(self) -> Mapping[int, int]:
        return {id(call): index for index, call in enumerate(self._calls)}

    @cached_property
    def _by_record(self) -> Mapping[str | None, AlignedCall]:
        return {call.record: call for call in self._calls}

    @cached_property
    def _by_golden_record(self) -> Mapping[str | None, AlignedCall]:
        return {call.golden_record: call for call in self._calls}

    @cached_property
    def _takers_of_target(self) -> Indexes:
        return self._takers(TARGET)

    @cached_property
    def _takers_of_golden(self) -> Indexes:
        return self._takers(GOLDEN)

    def _takers(self, side: int) -> Indexes:
        """The indexes of the calls that take a tensor, by its statistics: views and permutations have the same."""
        found: Indexes = {}
        for index, call in enumerate(self._calls):
            for row in call.rows:
                item = row.golden if side == GOLDEN else row.target
                if item is not None and item.is_tensor and is_input(row):
                    found.setdefault(key_of(item), []).append(index)
        return found

    def _taking(self, key: Key, side: int) -> Sequence[int]:
        """The indexes of the calls that take a tensor with these statistics on one side."""
        takers = self._takers_of_golden if side == GOLDEN else self._takers_of_target
        return takers.get(key, ())

    def reach_values(self, call: AlignedCall, item: str, agreement: Agreement = Agreement.NEARLY) -> bool:
        """True if what differs in `call` makes a difference to anything that is computed from it.

        Args:
            call: the call.
            item: the name of the item that differs, for a call that returns no tensor.
            agreement: what results have to be like where it makes none.
        """
        given = (row.target for row in call.rows if is_input(row))
        if any(each is not None and each.name == item for each in given) and self._agrees(call, agreement):
            return False
        around = self._tree.get(call.record or "")
        module = self._by_record.get(around) if around else None
        if module is not None and self._agrees(module, agreement):
            return False
        tensors = [(row.target, is_input(row)) for row in call.rows if row.target is not None and row.target.is_tensor]
        returned = self._returned_otherwise(call, TARGET)
        items = returned or [each for each, _ in tensors if each.name == item]
        index = self._index_of.get(id(call), 0)
        found = self._takers_agree(items, index, TARGET, agreement)
        if found is not False and returned:
            # What the golden side hands on as it is may be made into something else first by the target, or be taken
            # by more calls than there.
            of_golden = self._takers_agree(self._returned_otherwise(call, GOLDEN), index, GOLDEN, agreement)
            found = found if of_golden is None else of_golden
        if found is not None:
            return not found
        # Nothing recorded takes it. Numbers are values; of whole numbers and flags nobody knows what they decide,
        # except where no module is around that could have taken them.
        return (bool(self._tree) and not around) or any(unit_roundoff(each.dtype) for each in items)

    def shown_from(self, call: AlignedCall) -> float | None:
        """The relative size from which on an effect of `call` would show; ``None`` if nothing was compared behind it.

        That is what the values differ by in which it would: its own, those of the innermost module around it that can
        be compared, or those of the first calls that take its result, whichever differ the least.
        """
        index = self._index_of.get(id(call), 0)
        sides = [side for side, name in ((TARGET, call.record), (GOLDEN, call.golden_record)) if name]
        found = [
            self._largest(call),
            self._around(call),
            *(self._largest_of_takers(call, index, each) for each in sides),
        ]
        return min((each for each in found if each is not None), default=None)

    def _around(self, call: AlignedCall) -> float | None:
        """The largest relative difference of what the innermost module around a call returns that can be compared."""
        modules, tree = (self._by_record, self._trees[TARGET])
        name = call.record
        if not name:
            modules, tree, name = self._by_golden_record, self._trees[GOLDEN], call.golden_record
        around = (modules[module] for module in modules_around(tree, name or "") if module in modules)
        return next((found for found in map(self._largest, around) if found is not None), None)

    def _largest_of_takers(self, call: AlignedCall, index: int, side: int) -> float | None:
        """The largest relative difference of what the first calls return that take what `call` returns on one side."""
        ahead, seen = returned_by(call, side), set[Key]()
        while ahead:
            item = ahead.pop(0)
            key = key_of(item)
            if key in seen or item.max == item.min:
                continue
            seen.add(key)
            takers = [self._calls[taker] for taker in self._taking(key, side) if taker > index]
            found = [each for each in map(self._largest, takers) if each is not None]
            if found:
                return max(found)
            ahead += chain.from_iterable(returned_by(taker, side) for taker in takers)
        return None

    def _largest(self, call: AlignedCall) -> float | None:
        """The largest relative difference of the floating-point outputs of a call, no less than their rounding.

        ``None`` if none can be compared.
        """
        rows = call.rows if call.record and call.golden_record else ()
        return self._largest_in(row for row in rows if _is_comparable(row))

    def _largest_in(self, rows: Iterable[Row]) -> float | None:
        found = [
            max(self._error.difference(row), unit_roundoff(row.target.dtype), unit_roundoff(row.golden.dtype))
            for row in rows
            if row.target is not None and row.golden is not None
        ]
        return max(found, default=None)

    def largest_of(self, calls: Sequence[AlignedCall]) -> float | None:
        """The largest relative difference of the floating-point tensors that `calls` take and return.

        It is no less than their rounding; ``None`` if none can be compared.
        """
        rows = [row for call in calls if call.record and call.golden_record for row in call.rows]
        return self._largest_in(row for row in rows if _has_as_many_numbers(row))

    def is_inside_of_one_batch(self, call: AlignedCall) -> bool:
        """True if a module around `call` takes and returns as many rows on both sides.

        Whatever parts of its input the call was made on, they are put together again.
        """
        around = map(self._by_record.get, modules_around(self._tree, call.record or ""))
        return any(module is not None and _has_same_shapes(module) for module in around)

    def _returned_otherwise(self, call: AlignedCall, side: int) -> list[Item]:
        """The tensors that a call returns on one side, those that differ where any does.

        Whoever takes the others says nothing of the difference: the gradient of a bias may be right beside a weight's.
        """
        rows = [row for row in call.rows if not is_input(row)]
        differing = [row for row in rows if row.target is None or row.golden is None or self._error.difference(row)]
        items = ((row.target, row.golden)[side] for row in differing or rows)
        return [item for item in items if item is not None and item.is_tensor]

    def _takers_agree(self, items: list[Item], index: int, side: int, agreement: Agreement) -> bool | None:
        """True if the first judgeable calls that take one of `items`, or what is made of them, return the same.

        A call may take a tensor for its type or shape alone, so that one which agrees does not speak for calls of
        another kind. It does for those of its own: where the same call agrees in one layer, the next one differs for
        a reason of its own. It does for modules around it, which hand on what they take, if functions are recorded.
        """
        ahead = list(items)
        seen: set[Key] = set()
        while ahead:
            item = ahead.pop(0)
            key = key_of(item)
            # A constant is no evidence of where it came from.
            if key in seen or item.max == item.min:
                continue
            seen.add(key)
            agreed: set[str] = set()
            handing_on: set[str] = set()
            for taker in self._taking(key, side):
                if taker <= index:
                    continue
                call = self._calls[taker]
                agrees = self._agrees(call, agreement)
                if agrees is None:
                    ahead += returned_by(call, side)
                elif agrees:
                    agreed.add(_kind(call))
                    handing_on.update(modules_around(self._tree, call.record or "") if self._has_functions else ())
                elif _kind(call) not in agreed and call.record not in handing_on:
                    return False
            if agreed:
                return True
        return None

    @cached_property
    def _has_functions(self) -> bool:
        return any(is_forward(each.record) and not is_module(each.record) for each in self._calls if each.record)

    def _agrees(self, call: AlignedCall, agreement: Agreement) -> bool | None:
        """True if the floating-point outputs of a call agree; ``None`` where none can be compared."""
        found = None
        for row in call.rows if call.record and call.golden_record else ():
            target, golden = row.target, row.golden
            if target is None or golden is None or not _is_comparable(row):
                continue
            roundoff = max(self._error.roundoff(target, golden), unit_roundoff("float32"))
            allowed = _CARRIED_ON * self._error.largest + rounding(extent(golden.shape).longest, roundoff)
            is_near = agreement is Agreement.NEARLY
            if self._error.of_elements(row) > (allowed if is_near else 0.0) or not (is_near or is_same(target, golden)):
                return False
            if agreement is Agreement.PROVEN and not is_told_exactly(target):
                return False
            found = True
        return found


def _is_comparable(row: Row) -> bool:
    """True if it is an output of as many floating-point numbers on both sides."""
    return not is_input(row) and _has_as_many_numbers(row)


def _has_as_many_numbers(row: Row) -> bool:
    target, golden = row.target, row.golden
    if target is None or golden is None or not target.is_tensor or not unit_roundoff(target.dtype):
        return False
    return extent(target.shape).elements == extent(golden.shape).elements


def _has_same_shapes(call: AlignedCall) -> bool:
    """True if a call takes and returns tensors, and each has the shape that it has on the other side."""
    shapes: dict[bool, list[bool]] = {True: [], False: []}
    for row in call.rows:
        target, golden = row.target, row.golden
        if target is not None and golden is not None and target.state in (INPUT, OUTPUT) and target.is_tensor:
            shapes[is_input(row)].append(target.shape == golden.shape)
    return all(bool(each) and all(each) for each in shapes.values())


def _kind(call: AlignedCall) -> str:
    """The function, or the class of the module."""
    parsed = parse(call.record or "")
    return "" if parsed is None else parsed.base.rpartition(".")[2] + parsed.direction


def returned_by(call: AlignedCall, side: int) -> list[Item]:
    """The tensors that a call returns on one side."""
    items = ((row.target, row.golden)[side] for row in call.rows if not is_input(row))
    return [item for item in items if item is not None and item.is_tensor]


def key_of(item: Item) -> Key:
    """The statistics by which a tensor is found again: views and permutations have the same."""
    return item.max, item.min, item.norm, item.md5, extent(item.shape).elements
