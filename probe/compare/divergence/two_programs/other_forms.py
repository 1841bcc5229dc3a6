"""Parameters that two programs hold in other forms: one holds a scale, the other its distance from 1."""

from __future__ import annotations

from probe.common.dump.naming import is_module
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import relative_difference
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.differences import item_name
from probe.compare.divergence.two_programs.graph import rounds

_ROUNDINGS = 4.0
"""The roundings of a sum with 1, its distance and of the statistics that tell it."""
_ALMOST = 1e-3
"""The relative difference that results may have, of what calls before have rounded. A guess: far below that of a scale,
which is about 1."""


def is_in_other_form(call: AlignedCall, name: str) -> bool:
    """True if a vector of a module is larger by 1 throughout than on the other side, and the module returns the same.

    Args:
        call: the call of the module.
        name: the item of the parameter.
    """
    row = next((row for row in call.rows if item_name(row) == name), None)
    if row is None or row.target is None or row.golden is None or not is_module(call.record or ""):
        return False
    if len(row.target.shape or ()) != 1 or not _is_larger_by_one(row.target, row.golden):
        return False
    pairs = [(each.target, each.golden) for each in call.rows if not is_input(each)]
    results = [(one, other) for one, other in pairs if one is not None and other is not None and rounds(one)]
    coarsest = max((unit_roundoff(item.dtype) for pair in results for item in pair), default=0.0)
    allowed = max(_ALMOST, _ROUNDINGS * coarsest)
    return bool(results) and all(relative_difference(*pair) <= allowed for pair in results)


def _is_larger_by_one(target: Item, golden: Item) -> bool:
    numbers = [(target.max, golden.max), (target.min, golden.min), (target.mean, golden.mean)]
    roundoff = max(unit_roundoff(target.dtype), unit_roundoff(golden.dtype))
    apart = []
    for one, other in numbers:
        if type(one) is not float or type(other) is not float:
            return False
        if abs(abs(one - other) - 1.0) > _ROUNDINGS * roundoff * (1.0 + abs(one) + abs(other)):
            return False
        apart.append(one > other)
    return len(set(apart)) == 1
