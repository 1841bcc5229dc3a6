"""Calls that were paired by nothing but the names of their functions, though two programs may have made them.

Without modules the third `linear` of one program is held against the third of the other. Where many calls are on one
side alone or have values of another size, these are two things, and that they differ says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from probe.common.dump.naming import is_forward
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.result import Difference, Unexplained

_FEWEST = 0.6
"""The share of forward calls with a counterpart of the same sizes from which on the programs may be one.

Chosen between what was measured of 12 pairs of packages at L1: of those of which right pairs seemed to diverge the
largest share is 0.57, and of those that did not the least is 0.56; next is 0.69. Another release of one program, and
another implementation of attention, have 0.7 and more.
"""


def are_of_two_programs(calls: Iterable[AlignedCall]) -> bool:
    """True if so few forward calls of both sides have the same sizes that their names are no evidence."""
    of_both = all_calls = 0
    for call in calls:
        if not is_forward(call.record or call.golden_record or ""):
            continue
        all_calls += 1
        of_both += bool(call.record and call.golden_record) and _have_same_sizes(call)
    return of_both < _FEWEST * all_calls


def untold(first: Unexplained) -> Difference:
    """Sentence on the call that would be named."""
    reason = f"{first.reason}; calls are paired by names of functions alone, and level mix tells them by modules"
    return Difference(first.record, first.golden_record, first.item, reason, first.found or 0.0, is_value=True)


def _have_same_sizes(call: AlignedCall) -> bool:
    both = ((row.target, row.golden) for row in call.rows)
    return all(_size(target) == _size(golden) for target, golden in both if target is not None and golden is not None)


def _size(item: Item) -> int:
    return extent(item.shape).elements if item.is_tensor else 0
