"""A result that differs by no more than one rounding of each element, all of them in one direction.

A random walk takes rounding errors for independent. Those of a tensor times one number are not: in bfloat16 the product
with 0.999 rounds back to the tensor, so that every element, and with them mean and norm, is 0.1 % too large.
"""

from __future__ import annotations

import math

from probe.common.align.row import Row
from probe.common.dump.naming import function_name, is_forward, is_module
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import is_number, rms
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import ELEMENTWISE, ROUNDED_ONCE, Trait
from probe.common.operations.lookup import function
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input

_MOST = 100.0
"""The logarithm of a difference beyond which it makes none."""


def is_one_rounding(call: AlignedCall, row: Row) -> bool:
    """True if the statistics of a result allow what those of what goes in, and one rounding, make.

    Terms that cancel would allow more; this does not count on it.

    Args:
        call: the call. It is asked of functions that make each element of one element of each tensor.
        row: the result.
    """
    name, golden, target = call.record or "", row.golden, row.target
    if target is None or golden is None or not is_forward(name) or is_module(name):
        return False
    known = function(function_name(name))
    if known.rounding not in (ROUNDED_ONCE, ELEMENTWISE) and not known.has(Trait.EACH_ALONE):
        return False
    after = _apart(target, golden)
    carried = [0.0, 0.0, 0.0, 0.0]
    for each in call.rows:
        if is_input(each) and (_is_tensor(each.target) or _is_tensor(each.golden)):
            before = None if each.target is None or each.golden is None else _apart(each.target, each.golden)
            if before is None:
                return False
            carried = [one + other for one, other in zip(carried, before)]
    roundoff = max(unit_roundoff(target.dtype), unit_roundoff(golden.dtype))
    exponent = _exponent(call) if known.name == "pow" else 1.0
    if exponent > 1.0:
        # Mean and norm of squares depend on all elements, the largest ones above all.
        carried = [math.expm1(min(_MOST, exponent * math.log1p(max(carried))))] * 4
    return after is not None and all(found <= before + roundoff for found, before in zip(after, carried))


def _exponent(call: AlignedCall) -> float:
    """The exponent of a power, which multiplies relative errors; 1 if it is no number, or not the same on both sides.

    The product of a number with itself carries the errors of both factors.
    """
    exponents = {
        item.value for row in call.rows if is_input(row) for item in (row.target, row.golden)
        if item is not None and is_number(item.value)
    }  # fmt: skip
    return max(1.0, abs(exponents.pop())) if len(exponents) == 1 else 1.0


def _is_tensor(item: Item | None) -> bool:
    return item is not None and item.is_tensor


def _apart(target: Item, golden: Item) -> tuple[float, float, float, float] | None:
    """The differences of maximum and minimum relative to the largest element, of the mean to the rms, and of the norm.

    ``None`` if one is not known.
    """
    sides = [(item.max, item.min, item.mean, item.norm) for item in (target, golden)]
    if any(type(value) is not float or not math.isfinite(value) for side in sides for value in side):
        return None
    largest, size = max(abs(golden.max), abs(golden.min)), rms(golden)
    if not largest or not size:
        return (0.0, 0.0, 0.0, 0.0) if sides[0] == sides[1] else None
    maximum, minimum, mean, norm = (abs(one - other) for one, other in zip(*sides))
    return maximum / largest, minimum / largest, mean / size, norm / golden.norm
