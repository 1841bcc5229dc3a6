"""Calls of one function in one module that two runs of one program make in another order.

The numbers of such calls contradict what they take and return: that is what another one takes and returns.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.align.call_order import Pairs
from probe.common.align.calls import KeyedCall
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import relative_difference

_NEAR = 0.02
"""The relative difference up to which statistics are of the same values, also in a short type: a guess."""
_CLEARLY = 0.5
"""The difference of the nearest call is at most this share of that of any other one."""
_MOST = 4096
"""The pairs of calls of one function in one module that are looked at; of more only the numbers."""


def nearest_calls(target: Sequence[KeyedCall], golden: Sequence[KeyedCall]) -> Pairs:
    """The indexes of calls that are clearly nearer to each other than to any other one of the other side."""
    if len(target) * len(golden) > _MOST:
        return []
    differences = [[_difference(call, other) for other in golden] for call in target]
    found: Pairs = []
    for i, row in enumerate(differences):
        j = min(range(len(row)), key=row.__getitem__)
        rivals = [*row[:j], *row[j + 1 :], *(other[j] for other in (*differences[:i], *differences[i + 1 :]))]
        if row[j] <= _NEAR and row[j] <= _CLEARLY * min(rivals, default=1.0) and row[j] < min(rivals, default=1.0):
            found.append((i, j))
    return found


def are_far(call: KeyedCall, other: KeyedCall) -> bool:
    """True if what two calls take differs by more than rounding does."""
    return call.items is not other.items and _difference(call, other) > _NEAR


def _difference(call: KeyedCall, other: KeyedCall) -> float:
    """The largest relative difference of the tensors of two calls; infinite if they are of other kinds."""
    mine, theirs = ([item for item in each.items if item.is_tensor] for each in (call, other))
    if len(mine) != len(theirs):
        return float("inf")
    return max((_of_tensors(item, another) for item, another in zip(mine, theirs)), default=0.0)


def _of_tensors(item: Item, other: Item) -> float:
    return relative_difference(item, other) if item.shape == other.shape else float("inf")
