"""The origin of a difference: the way of a tensor between the call that returned it and the one that takes it.

Both are looked up by statistics, as `effects` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from probe.common.align.row import Row
from probe.common.dump.naming import parse
from probe.common.dump.reading.records import Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.formats import FORMATS, nearest
from probe.compare.divergence.aligned_calls import AlignedCall, module_path
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.effects import GOLDEN, TARGET, Indexes, Key, key_of, returned_by

_SIDES = "target", "golden run"
_Returned = dict[Any, list[tuple[int, Item]]]
_LONGEST_CHAIN = 4
"""The number of calls of one side alone that may come one after the other."""


class Origins:
    """Says what becomes of a tensor between the call that returned it and the one that takes it.

    Args:
        calls: all calls of both runs, in order.
        trees: the call trees of target and golden side.
    """

    def __init__(self, calls: Sequence[AlignedCall], trees: tuple[Tree, Tree]) -> None:
        self._calls = calls
        self._trees = trees

    @cached_property
    def _returned(self) -> tuple[_Returned, _Returned]:
        """The tensors that calls return on each side, with the indexes of the calls, by their largest elements.

        A few of them are asked for: to make the keys of all would take longer than all of the search.
        """
        found: tuple[_Returned, _Returned] = {}, {}
        for index, call in enumerate(self._calls):
            for row in call.rows:
                if is_input(row):
                    continue
                for item, returned in zip((row.target, row.golden), found):
                    if item is not None and item.is_tensor:
                        returned.setdefault(item.max, []).append((index, item))
        return found

    def _givers(self, key: Key, side: int) -> list[int]:
        """The indexes of the calls that return a tensor with these statistics, in order."""
        return [index for index, item in self._returned[side].get(key[0], ()) if key_of(item) == key]

    @cached_property
    def _ends(self) -> tuple[list[float], list[float]]:
        """The time at which each call ends on its own side, by its index."""
        target = [float(index) for index in range(len(self._calls))]
        known = _ends_in(self._trees[GOLDEN])
        golden, last = [], -1.0
        for call in self._calls:
            # The calls stand in the order of the target. Gradients of parameters are in no tree.
            last = known.get(call.golden_record or "", last)
            golden.append(last)
        return target, golden if known else target

    def between(self, call: AlignedCall, item: str) -> str:
        """The difference on the way to an input of `call`, in words; empty if it is unknown."""
        row = _row_of(call, item)
        if row is None or row.target is None or row.golden is None or not is_input(row) or not row.target.is_tensor:
            return ""
        index = self._index_of(call)
        items = row.target, row.golden
        given = [self._last_giver(items[side], index, side) for side in (TARGET, GOLDEN)]
        for side in (GOLDEN, TARGET):
            if text := self._in_another_order(given[side], index, side):
                return text
        if (given[TARGET] is None) == (given[GOLDEN] is None):
            return ""
        # One side hands on what a call returned as it is; the other one does not.
        plain, other = (GOLDEN, TARGET) if given[TARGET] is None else (TARGET, GOLDEN)
        giver = given[plain]
        name = None if giver is None else _record(self._calls[giver], other)
        if giver is None or name is None:
            return ""
        if not self._trees[GOLDEN] and self._givers(key_of(items[other]), other):
            # A call returns it, and whether that is before this one on the golden side nobody knows.
            return ""
        short = _type_of_cast(items[other], items[plain])
        if not short:
            for taker in self._takers_on_the_way(giver, index, other):
                # A call that is recorded may have changed it, so that nobody can say that none has.
                return self._in_another_order(taker, index, other)
        did = f"rounds what {name} returned to {short}" if short else f"changes what {name} returned"
        return f"the {_SIDES[other]} {did} before it comes here, by code that is not recorded"

    def made_on_one_side(self, call: AlignedCall, item: str) -> AlignedCall | None:
        """The call of one side alone that takes what the other side has for this item and returns what its own has."""
        row = _row_of(call, item)
        if row is None or row.target is None or row.golden is None or not row.target.is_tensor:
            return None
        keys = key_of(row.target), key_of(row.golden)
        if any(each.max == each.min for each in (row.target, row.golden)) or keys[TARGET] == keys[GOLDEN]:
            return None
        for side, other in ((TARGET, GOLDEN), (GOLDEN, TARGET)):
            # A layer ends after the calls inside of it.
            for index in reversed(self._givers(keys[side], side)):
                giver = self._calls[index]
                if _record(giver, other) is None and (first := self._first_of_chain(index, keys[other], side)):
                    return first
        return None

    def _first_of_chain(self, index: int, wanted: Key, side: int) -> AlignedCall | None:
        """The first of some calls of one side alone, each on the result of the one before, that make it of `wanted`."""
        for _ in range(_LONGEST_CHAIN):
            call = self._calls[index]
            given = list(map(key_of, _given(call, side)))
            if wanted in given:
                return call
            alone = (
                each
                for key in given
                for each in reversed(self._givers(key, side))
                if each < index and _record(self._calls[each], 1 - side) is None
            )
            before = next(alone, None)
            if before is None:
                return None
            index = before
        return None

    def elsewhere(self, missing: AlignedCall, call: AlignedCall) -> str:
        """The sentence on `missing` if one side makes it before `call` and the other one after it.

        Neither has a counterpart, as no order of both sides has them all beside each other.
        """
        side = TARGET if missing.golden_record is None else GOLDEN
        key, index = self._kind_in_module(missing, side), self._index_of(call)
        alone = tuple([] if key is None else self._alone[each].get(key, []) for each in (side, 1 - side))
        if len(alone[0]) != len(alone[1]):
            return ""
        late = next((each for each in alone[1] if each > index), None)
        if late is None or self._calls.index(missing) not in alone[0]:
            return ""
        name, other_name = _record(missing, side), _record(self._calls[late], 1 - side)
        return _in_another_order(side, name or "", other_name or "")

    @cached_property
    def _alone(self) -> tuple[Indexes, Indexes]:
        """The indexes of the calls that only one side makes, by kind and module, of each side."""
        found: tuple[Indexes, Indexes] = {}, {}
        for index, call in enumerate(self._calls):
            for side in (TARGET, GOLDEN):
                key = self._kind_in_module(call, side) if _record(call, 1 - side) is None else None
                if key is not None:
                    found[side].setdefault(key, []).append(index)
        return found

    def _kind_in_module(self, call: AlignedCall, side: int) -> Key | None:
        record = _record(call, side)
        parsed = parse(record or "")
        if record is None or parsed is None:
            return None
        return parsed.base, parsed.direction, module_path(record, self._trees[side])

    def _index_of(self, call: AlignedCall) -> int:
        return next((index for index, each in enumerate(self._calls) if each.record == call.record), 0)

    def _last_giver(self, item: Item, index: int, side: int) -> int | None:
        """The index of the last call that returns this before the one at `index`, in the order of this side."""
        if item.max == item.min:
            return None
        ends = self._ends[side]
        givers = self._givers(key_of(item), side)
        before = [each for each in givers if ends[each] < ends[index] and not self._is_inside(each, index, side)]
        return max(before, key=ends.__getitem__, default=None)

    def _in_another_order(self, giver: int | None, index: int, side: int) -> str:
        """In words, that a call which ends before the one at `index` on this side ends after it on the other one."""
        other = 1 - side
        if giver is None or not self._trees[GOLDEN]:
            return ""
        name, other_name = (_record(self._calls[giver], each) for each in (side, other))
        ends = self._ends[other]
        if name is None or other_name is None or ends[giver] <= ends[index] or self._is_inside(index, giver, other):
            return ""
        return _in_another_order(side, name, other_name)

    def _takers_on_the_way(self, giver: int, index: int, side: int) -> list[int]:
        """The calls that take on this side alone what `giver` returned, before the call at `index` ends."""
        returned = {key_of(item) for item in returned_by(self._calls[giver], side) if item.max != item.min}
        found = []
        for taker, call in enumerate(self._calls):
            if taker == index or not self._is_between(taker, giver, index, side):
                continue
            if self._is_inside(taker, index, side) or not returned.intersection(map(key_of, _given(call, side))):
                continue
            is_shared = call.record is not None and call.golden_record is not None
            other = 1 - side
            if not is_shared or not self._is_between(taker, giver, index, other):
                found.append(taker)
        return found

    def _is_between(self, each: int, first: int, last: int, side: int) -> bool:
        ends = self._ends[side]
        return _record(self._calls[each], side) is not None and ends[first] < ends[each] < ends[last]

    def _is_inside(self, each: int, around: int, side: int) -> bool:
        """True if the call at `each` is made by the one at `around`."""
        tree, wanted = self._trees[side], _record(self._calls[around], side)
        seen: set[str] = set()
        found = _record(self._calls[each], side)
        while found is not None and found not in seen:
            seen.add(found)
            found = tree.get(found)
            if found is not None and found == wanted:
                return True
        return False


def _in_another_order(side: int, name: str, other_name: str) -> str:
    late = "" if other_name == name else f" calls {other_name}"
    order = f"the {_SIDES[side]} calls {name} before this one, the {_SIDES[1 - side]}{late} after it"
    return f"the calls come in another order: {order}"


def _ends_in(tree: Tree) -> dict[str, float]:
    """The time at which each call ends, of a tree that has them in the order of their beginnings."""
    found: dict[str, float] = {}
    running: list[str] = []
    for record, around in tree.items():
        while running and running[-1] != around:
            found[running.pop()] = float(len(found))
        running.append(record)
    while running:
        found[running.pop()] = float(len(found))
    return found


def _record(call: AlignedCall, side: int) -> str | None:
    return (call.record, call.golden_record)[side]


def _row_of(call: AlignedCall, item: str) -> Row | None:
    return next((row for row in call.rows if row.target is not None and row.target.name == item), None)


def _given(call: AlignedCall, side: int) -> list[Item]:
    items = ((row.target, row.golden)[side] for row in call.rows if is_input(row))
    return [item for item in items if item is not None and item.is_tensor]


def _type_of_cast(item: Item, before: Item) -> str:
    """The short type that an item was rounded to and widened again, as its extremes say."""
    extremes = (item.max, item.min), (before.max, before.min)
    if item.dtype != before.dtype or any(type(each) is not float for values in extremes for each in values):
        return ""
    for name in ("float16", "bfloat16"):
        rounded = tuple(nearest(value, FORMATS[name]) for value in extremes[1])
        if extremes[0] == rounded != extremes[1]:
            return name
    return ""
