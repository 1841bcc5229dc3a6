"""Calls that have a counterpart, and values that can be compared with those of the counterpart.

Names may agree where shapes do not. Such a call was not compared, and says nothing of what is behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input


def with_compared_values(calls: Iterable[AlignedCall]) -> list[tuple[str | None, str | None]]:
    """The records of the target with their counterparts, without those of which no value can be compared.

    That is a call that returns floating-point numbers, and another number of them on either side.
    """
    return [
        (call.record, call.golden_record if call.record is None or has_compared_values(call) else None)
        for call in calls
    ]


def has_compared_values(call: AlignedCall) -> bool:
    """True unless every floating-point output that both sides have has another number of elements on the other."""
    if not call.record or not call.golden_record:
        return True
    found = True
    for row in call.rows:
        target, golden = row.target, row.golden
        if target is None or golden is None or is_input(row) or not (target.is_tensor and golden.is_tensor):
            continue
        if unit_roundoff(target.dtype):
            if extent(target.shape).elements == extent(golden.shape).elements:
                return True
            found = False
    return found
