"""The call of one side alone that puts the elements of a tensor in another order, such as a roll or a transposition.

No statistic of a tensor shows its order. The sum behind a mean or a norm is rounded in another order, though, so that
these are compared up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from probe.common.dump.naming import FORWARD, function_name, is_module
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent
from probe.common.operations.function import EXACT, Trait
from probe.common.operations.lookup import function, has
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.effects import GOLDEN, TARGET, Indexes, Key, returned_by

_FARTHEST = 8
"""The number of calls that are looked at before the one that shows it."""
_ROUNDED = 1e-5
"""The relative difference of two norms of the same elements."""


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
        if index is None or FORWARD not in (call.record or ""):
            return None
        return self._on_side(index, TARGET) or self._on_side(index, GOLDEN)

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
    """True if two tensors may have the same elements in any order, as far as statistics tell.

    A tensor of one repeated number has no order.
    """
    if not one.is_tensor or not other.is_tensor or one.max == one.min or one.dtype != other.dtype:
        return False
    if _extremes(one) != _extremes(other):
        return False
    norms = one.norm, other.norm
    return all(type(norm) is float for norm in norms) and math.isclose(*norms, rel_tol=_ROUNDED)


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
