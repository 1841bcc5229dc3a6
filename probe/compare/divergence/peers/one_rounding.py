"""A result that differs by no more than one rounding of each element, all of them in one direction.

A random walk takes rounding errors for independent. Those of a tensor times one number are not: in bfloat16 the product
with 0.999 rounds back to the tensor, so that every element, and with them mean and norm, is 0.1 % too large.
"""

from __future__ import annotations

import math

from probe.common.align.row import Row
from probe.common.dump.naming import FORWARD, function_name, is_module
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import rms
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import ROUNDED_ONCE
from probe.common.operations.lookup import function
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input


def is_one_rounding(call: AlignedCall, row: Row) -> bool:
    """True if the statistics of a result allow what those of the one tensor that goes in, and one rounding, make.

    Args:
        call: the call. It is asked of functions that round once and take one tensor, beside plain numbers.
        row: the result.
    """
    name, golden, target = call.record or "", row.golden, row.target
    if target is None or golden is None or FORWARD not in name or is_module(name):
        return False
    if function(function_name(name)).rounding != ROUNDED_ONCE:
        return False
    given = [each for each in call.rows if is_input(each) and (_is_tensor(each.target) or _is_tensor(each.golden))]
    if len(given) != 1 or given[0].target is None or given[0].golden is None:
        return False
    before, after = (_apart(given[0].target, given[0].golden), _apart(target, golden))
    sizes = rms(given[0].golden), rms(golden)
    if before is None or after is None or not sizes[0]:
        return False
    grown = sizes[1] / sizes[0]
    roundoff = max(unit_roundoff(target.dtype), unit_roundoff(golden.dtype))
    largest = max(abs(golden.max), abs(golden.min))
    # An extreme, the mean by the root mean square, and the norm are each one rounding away at most.
    scales = largest, largest, sizes[1], golden.norm
    return all(
        found <= grown * carried + roundoff * scale for found, carried, scale in zip(after, before, scales)
    )


def _is_tensor(item: Item | None) -> bool:
    return item is not None and item.is_tensor


def _apart(target: Item, golden: Item) -> tuple[float, float, float, float] | None:
    """The absolute differences of maximum, minimum, mean and norm; ``None`` if one is not known."""
    sides = [(item.max, item.min, item.mean, item.norm) for item in (target, golden)]
    if any(type(value) is not float or not math.isfinite(value) for side in sides for value in side):
        return None
    largest, smallest, mean, norm = (abs(one - other) for one, other in zip(*sides))
    return largest, smallest, mean, norm
