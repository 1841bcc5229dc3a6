"""Tensors that differ by one factor, and products with a constant, which undo such a difference."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probe.common.dump.naming import function_name, is_module
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent
from probe.common.operations.lookup import function
from probe.compare.divergence.effects import key_of
from probe.compare.divergence.two_programs.graph import CallOfSide, Graph

_PRODUCTS = ("mul", "div")


def one_factor(target: Item, golden: Item, allowed: float) -> float | None:
    """The factor between two tensors, if all statistics have the same.

    Args:
        target, golden: the tensors.
        allowed: the relative difference of the factors of two statistics that are one factor.

    Returns:
        ``None`` of tensors of zeros or of other shapes, NaN where statistics have other factors.
    """
    if target.shape != golden.shape:
        return None
    mine, theirs = _sizes(target), _sizes(golden)
    if mine is None or theirs is None or not theirs[0] or not mine[0]:
        return None
    factor = mine[0] / theirs[0]
    # Rounding of the smaller extreme is that of the larger one.
    allowed *= max(abs(each) for each in mine[1:])
    same = all(abs(one - factor * other) <= allowed for one, other in zip(mine[1:], theirs[1:]))
    return factor if same else math.nan


def _sizes(item: Item) -> tuple[float, ...] | None:
    found = item.norm, item.max, item.min
    if not all(type(each) is float and math.isfinite(each) for each in found):
        return None
    return tuple(float(each) for each in found)


def scaled(graph: Graph, item: Item) -> Iterator[Item]:
    """The products of a tensor with one number that calls of its side make of it."""
    for call in graph.innermost_takers(key_of(item)):
        if _is_scaling(call):
            yield from call.returned


def _is_scaling(call: CallOfSide) -> bool:
    if is_module(call.record) or function(function_name(call.record)).name not in _PRODUCTS:
        return False
    return sum(extent(item.shape).elements > 1 for item in call.given) == 1
