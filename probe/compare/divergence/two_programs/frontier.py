"""The first layer of two programs from which on values stay apart, up to what the pass returns.

In a short type a value that agrees says little, and one that does not says as little. What a whole pass returns says
more, and what many layers return: if these are further apart than statistics make them by chance, the programs do
diverge. Where they do is told by layers
with equal parameters, which compute the same on both sides: by the first whose result is further apart than chance
makes one of so many, and of which everything that follows is apart too. Where a value agrees further down, a layer is
apart because the other program has a part of it elsewhere, such as its bias. The calls between the layer and the one
before may have no counterparts; they are its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from probe.common.align.row import Row
from probe.common.dump.naming import is_forward, is_module
from probe.common.dump.reading.records import INPUT
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import is_same
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.peers.leaving import largest_by_chance
from probe.compare.divergence.two_programs.following import Outcome
from probe.compare.divergence.two_programs.graph import rounds
from probe.compare.divergence.two_programs.held_values import SPREAD, error_of
from probe.compare.divergence.two_programs.regions import Regions


class Frontier(NamedTuple):
    """A layer, and how far apart its result is."""

    call: AlignedCall
    row: Row
    error: float
    """The relative error of its result."""
    usual: float
    """The one of tensors before it."""
    allowed: float
    """The largest one that chance makes of that."""
    equal: str
    """The last layer before it whose result is equal in every digit; empty if there is none."""
    between: list[str]
    """The outermost modules of the target between these two, if what the layer takes was not seen to agree."""


class Layer(NamedTuple):
    """The result of a layer with equal parameters on both sides."""

    call: AlignedCall
    row: Row
    error: float
    """Its relative error."""
    usual: float
    """The one of tensors before it."""


def frontier(calls: Sequence[AlignedCall], regions: Regions, tree: Tree) -> Frontier | None:
    """The first layer from which on values stay apart; ``None`` if there is none, or if types are not short.

    Args:
        calls: all calls of both runs, in order.
        regions: follows values through both.
        tree: the call tree of the target.
    """
    layers = list(layers_of(calls, regions)) if regions.is_coarse else []
    largest = largest_by_chance(len(layers))
    index = next((index for index, each in enumerate(layers) if _stays_apart(each, largest, regions)), None)
    if index is None:
        return None
    call, row, error, usual = layers[index]
    equal = next((each.call for each in reversed(layers[:index]) if not _differs(each.row)), None)
    between = [] if _takes_the_same(call, SPREAD * usual) else _between(calls, equal, call, tree)
    before = "" if equal is None else equal.record or ""
    return Frontier(call, row, error, usual, largest * usual, before, between)


def _stays_apart(layer: Layer, largest: float, regions: Regions) -> bool:
    if layer.error <= largest * layer.usual or layer.row.target is None:
        return False
    return regions.outcome(layer.call, layer.row.target.name, layer.error).outcome is Outcome.PARTS


def _takes_the_same(call: AlignedCall, allowed: float) -> bool:
    """True if all that a layer takes was compared and agrees."""
    rows = [row for row in call.rows if is_input(row) and _is_given(row)]
    errors = [None if row.target is None or row.golden is None else error_of(row.target, row.golden) for row in rows]
    return bool(errors) and all(error is not None and error <= allowed for error in errors)


def _is_given(row: Row) -> bool:
    return any(item is not None and item.state == INPUT and rounds(item) for item in (row.target, row.golden))


def _between(calls: Sequence[AlignedCall], equal: AlignedCall | None, call: AlignedCall, tree: Tree) -> list[str]:
    """The outermost modules of the target that end between two calls, and have neither inside."""
    first = -1 if equal is None else _index(calls, equal)
    names = [each.record for each in calls[first + 1 : _index(calls, call)] if each.record and is_forward(each.record)]
    modules = {name for name in names if is_module(name)}
    return [name for name in dict.fromkeys(names) if name in modules and tree.get(name) not in modules]


def _index(calls: Sequence[AlignedCall], wanted: AlignedCall) -> int:
    return next(index for index, call in enumerate(calls) if call is wanted)


def _differs(row: Row) -> bool:
    return row.target is None or row.golden is None or not is_same(row.target, row.golden)


def layers_of(calls: Sequence[AlignedCall], regions: Regions) -> Iterator[Layer]:
    """The results of the layers of both sides with equal parameters, in order."""
    for call in calls:
        if not (call.record and call.golden_record) or not is_forward(call.record) or not is_module(call.record):
            continue
        if not regions.is_same_computation(call):
            continue
        for row in call.rows:
            if is_input(row) or row.target is None or row.golden is None or not rounds(row.target):
                continue
            error = error_of(row.target, row.golden) if regions.have_as_many(row) else None
            if error is not None:
                yield Layer(call, row, error, regions.usual_before(call.record, row))
                break
