"""Sums that one of two programs makes where the other one has a term, such as a residual that is left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from probe.common.align.row import Row
from probe.common.dump.naming import function_name, is_forward, is_module
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent
from probe.common.operations.lookup import function
from probe.compare.divergence.effects import Key, key_of
from probe.compare.divergence.two_programs.graph import CallOfSide, Graph, rounds

_LONGEST_WAY = 4
"""The calls of one tensor each that may be between a sum and where it shows: a cast, a square, a mean. A guess."""


_MOST_ALIKE = 16
"""The tensors of one side with the same extremes that are kept, such as masks. A guess: more tell nothing."""
_Made = tuple[str, Item]
"""The record of a call, and what it returned."""


class Summed(NamedTuple):
    """A sum of one side, of which the other side has a term in the same place."""

    side: int
    maker: str
    """The record of the call that adds."""
    is_before: bool
    """True if calls of one tensor each come between it and the item."""


class Sums:
    """Finds sums that one side alone makes.

    Args:
        graphs: the calls of target and golden side.
    """

    def __init__(self, graphs: tuple[Graph, Graph]) -> None:
        self._graphs = graphs

    def on_one_side(self, row: Row, are_one: Callable[[Item, Item], bool]) -> Summed | None:
        """The sum that makes an item, or what the item is made of by calls of one tensor each.

        Args:
            row: the item.
            are_one: true of two tensors with the same values, of both sides.
        """
        sides = row.target, row.golden
        for depth in range(_LONGEST_WAY):
            if sides[0] is None or sides[1] is None or are_one(sides[0], sides[1]):
                return None  # A term may be too small to show in the sum.
            makers = [self._maker_of(item, side, are_one) for side, item in enumerate(sides) if item is not None]
            for side, (maker, other) in enumerate(zip(makers, sides[::-1])):
                if maker is None or other is None or function(function_name(maker.record)).name != "add":
                    continue
                if any(are_one(given, other) for given in maker.given):
                    return Summed(side, maker.record, depth > 0)
            given = [[each for each in maker.given if rounds(each)] for maker in makers if maker is not None]
            if [len(each) for each in given] != [1, 1]:
                return None
            sides = given[0][0], given[1][0]
        return None

    def _maker_of(self, item: Item, side: int, are_one: Callable[[Item, Item], bool]) -> CallOfSide | None:
        """The call of a function that returned a tensor."""
        record = self._graphs[side].makers.get(key_of(item))
        if record is None and item.max is not None and item.max != item.min:
            # A cast to a longer type keeps each number, and not the digits of the norm.
            made = self._by_extremes[side].get(_extremes(item), ())
            record = next((maker for maker, returned in made if are_one(item, returned)), None)
        return None if record is None or is_module(record) else self._graphs[side].calls[record]

    @cached_property
    def _by_extremes(self) -> tuple[dict[Key, list[_Made]], dict[Key, list[_Made]]]:
        """The first calls of both sides that returned tensors with these extremes and so many elements."""
        found: tuple[dict[Key, list[_Made]], dict[Key, list[_Made]]] = {}, {}
        for graph, makers in zip(self._graphs, found):
            for record in sorted(graph.calls, key=graph.positions.__getitem__):
                for item in graph.calls[record].returned if is_forward(record) else ():
                    made = makers.setdefault(_extremes(item), []) if rounds(item) else None
                    if made is not None and len(made) < _MOST_ALIKE:
                        made.append((record, item))
        return found


def _extremes(item: Item) -> Key:
    return item.max, item.min, extent(item.shape).elements
