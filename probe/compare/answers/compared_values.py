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
    numbers = [
        (extent(row.target.shape).elements, extent(row.golden.shape).elements)
        for row in call.rows
        if row.target is not None and row.golden is not None and row.target.is_tensor and row.golden.is_tensor
        if not is_input(row) and unit_roundoff(row.target.dtype)
    ]
    return not numbers or any(mine == theirs for mine, theirs in numbers)
