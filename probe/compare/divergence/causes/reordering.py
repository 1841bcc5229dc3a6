"""The call of one side alone that puts the elements of a tensor in another order, such as a roll or a transposition.

No statistic of a tensor shows its order. The sum behind a mean or a norm is rounded in another order, though, so that
these are compared up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from probe.common.dump.naming import function_name, is_forward, is_module
from probe.common.dump.reading.records import Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import SAFETY, coarsest, extent, relative_difference
from probe.common.operations.function import ELEMENTWISE, EXACT, ROUNDED_ONCE, Trait
from probe.common.operations.lookup import function, has
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.effects import GOLDEN, TARGET, Indexes, Key, key_of, returned_by

MAY_BE_REORDERED = "may have its elements in another order (permuted, transposed)"
"""Statistics that agree allow it and do not show it."""
IS_REORDERED = "has the same elements in another order (permuted, transposed)"
HAS_OTHER_ELEMENTS = "has other elements, with the same maximum, minimum, mean and norm"
"""The answers of saved values."""

_FARTHEST = 8
"""The number of calls that are looked at before the one that shows it."""
ROUNDED = 1e-5
"""The relative difference of two norms of the same elements, and of their means by the root mean square.

A guess: both are sums of float32 that are rounded in another order."""

_REORDERED = 0.05
"""The relative difference from which on a sum may be one of other elements. A guess: of those that were seen the least
is 0.13, and a fault of rounding is far below."""
_SHOWN = 0.01
"""The relative difference that other places of all elements make at least, for elements that are far from each other.

A guess: the largest of a million results in another order differ by several hundredths.
"""
_OPERANDS = 2
"""The fewest tensors that a sum of elements is made of."""


class Reorderings:
    """Looks for a call of one side alone that reorders what another call takes.

    Args:
        calls: all calls of both runs, in order.
    """

    def __init__(self, calls: Sequence[AlignedCall]) -> None:
        self._calls = calls

    def before(self, call: AlignedCall) -> AlignedCall | None:
        """The call that reorders, on one side alone, what `call` takes, or what that was computed from."""
        index = next((index for index, each in enumerate(self._calls) if each.record == call.record), None)
        if index is None or not is_forward(call.record or ""):
            return None
        for side in (TARGET, GOLDEN):
            maker = self._on_side(index, side)
            if maker is not None and any(is_shown(each, call, self._calls) for each in given_to(maker, side)):
                return maker
        return None

    def operand(self, call: AlignedCall, found: float, tree: Tree) -> AlignedCall | None:
        """The call that returned last what a sum is made of, if its statistics agree where those of the sum do not.

        Of a module, code that is not recorded may have made the sum of what calls inside of it return.

        Args:
            call: the call that returns the sum, or the module.
            found: the relative difference of the sum.
            tree: the call tree of the target.
        """
        index = next((index for index, each in enumerate(self._calls) if each.record == call.record), None)
        if index is None or found < _REORDERED:
            return None
        makers = self._inside(call, index, tree) if is_module(call.record or "") else self._makers(call, index)
        maker = self._calls[max(makers)] if makers else None
        return maker if maker is not None and _agrees(maker, found) else None

    def _makers(self, call: AlignedCall, index: int) -> set[int]:
        """The indexes of the calls that returned the operands of a sum or a product of elements; empty of others."""
        given = given_to(call, TARGET)
        is_of_elements = function(function_name(call.record or "")).rounding in (ROUNDED_ONCE, ELEMENTWISE)
        if not is_of_elements or len(given) < _OPERANDS:
            return set()
        # The first one made it; those behind handed it on.
        return {givers[-1] for item in given if (givers := self._givers(item, index, TARGET))}

    def _inside(self, call: AlignedCall, index: int, tree: Tree) -> set[int]:
        """The indexes of the calls right inside of a module of which no call beside them takes the result."""
        beside = [
            at for at, each in enumerate(self._calls[:index]) if each.record and tree.get(each.record) == call.record
        ]
        returned = [{key_of(item) for item in returned_by(self._calls[at], TARGET)} for at in beside]
        taken: set[Key] = set()
        for at, keys in zip(beside, returned):
            # What hands a tensor on makes nothing of it.
            taken.update(key for item in given_to(self._calls[at], TARGET) if (key := key_of(item)) not in keys)
        by_module = {key_of(item) for item in returned_by(call, TARGET)}
        found: dict[Key, int] = {}
        for at, keys in zip(beside, returned):
            if keys & by_module:
                return set()
            if self._calls[at].golden_record and not keys & taken:
                # The first one made it; those behind handed it on.
                found.update((key, at) for key in keys if key not in found)
        return set(found.values())

    def _on_side(self, index: int, side: int) -> AlignedCall | None:
        ahead, seen = [index], {index}
        while ahead and len(seen) <= _FARTHEST:
            last = ahead.pop(0)
            for item in given_to(self._calls[last], side):
                for giver in self._givers(item, last, side):
                    call = self._calls[giver]
                    if _reorders(call, side):
                        return call
                    if call.record is not None and call.golden_record is not None:
                        ahead += [] if giver in seen else [giver]
                        seen.add(giver)
                        break
        return None

    def _givers(self, item: Item, before: int, side: int) -> list[int]:
        """The indexes of the calls that return these elements before the one at `before`, the last one first."""
        found = self._by_extremes[side].get(_extremes(item), ())
        returning = (index for index in reversed(found) if index < before)
        return [each for each in returning if _has_elements_of(returned_by(self._calls[each], side), item)]

    @cached_property
    def _by_extremes(self) -> tuple[Indexes, Indexes]:
        found: tuple[Indexes, Indexes] = {}, {}
        for index, call in enumerate(self._calls):
            for side, indexes in enumerate(found):
                for item in returned_by(call, side):
                    indexes.setdefault(_extremes(item), []).append(index)
        return found


def has_same_elements(one: Item, other: Item) -> bool:
    """True if two tensors may have the same elements in other orders, as far as statistics tell.

    A tensor of one repeated number has no order, and equal checksums show the same order. The mean tells elements of
    another sign, which the norm does not.
    """
    if not one.is_tensor or not other.is_tensor or one.max == one.min or one.dtype != other.dtype:
        return False
    if _extremes(one) != _extremes(other) or (one.md5 is not None and one.md5 == other.md5):
        return False
    norm, other_norm, mean, other_mean = one.norm, other.norm, one.mean, other.mean
    if not type(norm) is type(other_norm) is type(mean) is type(other_mean) is float:
        return False
    root_mean_square = norm / math.sqrt(extent(one.shape).elements)
    means_agree = abs(mean - other_mean) <= ROUNDED * root_mean_square
    return means_agree and math.isclose(norm, other_norm, rel_tol=ROUNDED)


def is_shown(item: Item, call: AlignedCall, calls: Sequence[AlignedCall]) -> bool:
    """True if results differ by as much as another order of the elements of `item` makes them.

    Values that are equal up to rounding have statistics that agree as well, and results that nearly agree. Elements
    that are nearly equal, such as the weights of a norm, may change places with little effect.

    Args:
        item: a tensor that `call` takes, with finite statistics.
        call: its results may have another order as well, which the calls behind it show then.
        calls: all calls, in order.
    """
    norm, mean = item.norm, item.mean
    if type(norm) is not float or type(mean) is not float or not norm:
        return False
    of_mean = mean**2 * extent(item.shape).elements / norm**2
    least = _SHOWN * min(1.0, math.sqrt(max(0.0, 2 * (1 - of_mean))))
    found = _of_results(call)
    if found > ROUNDED:
        return found >= least
    index = next((index for index, each in enumerate(calls) if each.record == call.record), len(calls))
    return any(_of_results(each) >= least for each in calls[index + 1 :])


def _of_results(call: AlignedCall) -> float:
    """The largest finite relative difference of what a call returns; 0 if it returns nothing."""
    pairs = [(row.target, row.golden) for row in call.rows if not is_input(row)]
    found = [relative_difference(one, other) for one, other in pairs if one is not None and other is not None]
    return max(filter(math.isfinite, found), default=0.0)


def _agrees(call: AlignedCall, found: float) -> bool:
    """True if the statistics of what a call returns differ by no more than rounding, and no checksum shows more."""
    pairs = [(row.target, row.golden) for row in call.rows if not is_input(row)]
    tensors = [(one, other) for one, other in pairs if one is not None and one.is_tensor]
    return bool(tensors) and all(
        other is not None
        and (one.md5 is None or one.md5 != other.md5)
        and relative_difference(one, other) <= min(found / 2, max(ROUNDED, SAFETY * coarsest((one, other))))
        for one, other in tensors
    )


def is_taken_by(call: AlignedCall, maker: AlignedCall) -> bool:
    """True if `call` takes the elements that `maker` returns, which one side alone makes."""
    side = TARGET if maker.record else GOLDEN
    given = given_to(call, side)
    return any(_has_elements_of(given, each) for each in returned_by(maker, side))


def _has_elements_of(items: Sequence[Item], item: Item) -> bool:
    return any(has_same_elements(each, item) for each in items)


def _extremes(item: Item) -> Key:
    return item.max, item.min, extent(item.shape).elements


def given_to(call: AlignedCall, side: int) -> list[Item]:
    """The tensors that a call takes on one side, but for those of one repeated number."""
    items = ((row.target, row.golden)[side] for row in call.rows if is_input(row))
    return [item for item in items if item is not None and item.is_tensor and item.max != item.min]


def _reorders(call: AlignedCall, side: int) -> bool:
    """True if one side alone makes this call, and it returns what it takes in an order that may be another."""
    record, other = (call.record, call.golden_record)[side], (call.record, call.golden_record)[1 - side]
    if record is None or other is not None or is_module(record):
        return False
    name = function_name(record)
    if function(name).rounding != EXACT or has(name, Trait.FITS, Trait.CASTS, Trait.EACH_ALONE):
        return False
    given = given_to(call, side)
    return any(_has_elements_of(given, each) for each in returned_by(call, side))
