"""Calls of one function in one module that two runs of one program make in another order.

The numbers of such calls contradict what they take and return: that is what another one takes and returns.
"""

from __future__ import annotations

from probe.common.align.calls import Calls, KeyedCall
from probe.common.dump.naming import FORWARD
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import relative_difference

_NEAR = 0.02
"""The relative difference up to which statistics are of the same values, also in a short type: a guess."""
_OF_FUNCTION = f".{FORWARD}"
"""The end of the names of calls of functions."""
_MOST = 64
"""The calls of one function in one module of which all pairs are looked at; those behind keep their numbers."""


def exchanged(both: Calls, trees: tuple[Tree, Tree]) -> list[tuple[int, int]]:
    """The numbers of calls that are far from their namesakes and near to one call alone that is far from its own."""
    index = {call.record.name: number for number, call in enumerate(both[1])}
    groups: dict[tuple[str | None, str], list[tuple[int, int]]] = {}
    for number, call in enumerate(both[0]):
        name = call.record.name
        namesake, around = index.get(name), trees[0].get(name)
        if namesake is not None and name.endswith(_OF_FUNCTION) and around == trees[1].get(name):
            groups.setdefault((around, name.rsplit(".", 2)[0]), []).append((number, namesake))
    found = []
    for group in groups.values():
        several = group if len(group) > 1 else []
        far = [(one, other) for one, other in several if not are_near(both[0][one], both[1][other])][:_MOST]
        near = [[other for _, other in far if are_near(both[0][one], both[1][other])] for one, _ in far]
        every = [other for others in near for other in others]
        found += [(one, near[0]) for (one, _), near in zip(far, near) if len(near) == 1 == every.count(near[0])]
    return found


def are_near(call: KeyedCall, other: KeyedCall) -> bool:
    """True if what two calls take and return differs by no more than rounding."""
    if call.items is other.items:
        return True
    mine, theirs = ([item for item in each.items if item.is_tensor] for each in (call, other))
    return len(mine) == len(theirs) and all(
        one.shape == another.shape and relative_difference(one, another) <= _NEAR for one, another in zip(mine, theirs)
    )
