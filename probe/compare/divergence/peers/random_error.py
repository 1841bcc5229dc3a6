"""The relative error of a tensor's elements, as far as its statistics show it."""

from __future__ import annotations

import math

from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import format_of, nearest, unit_roundoff

_FLOAT32 = unit_roundoff("float32")
_MASK = 1e4


def random_error(target: Item, golden: Item) -> float | None:
    """The root mean square of independent errors of elements, relative to the rms, that moves statistics by so much.

    Of n independent errors of relative size e the norm moves by e / sqrt(n) and by e^2 / 2, the mean by e / sqrt(n) of
    the root mean square, an extreme by about e of itself. Four statistics give e within a factor of three.

    Returns:
        ``None`` where statistics do not tell: an integer, a mask, a NaN.
    """
    values = (target.max, target.min, target.mean, target.norm, golden.max, golden.min, golden.mean, golden.norm)
    if set(map(type, values)) != {float} or target.value is not None or not math.isfinite(sum(values)):
        return None
    largest = max(abs(golden.max), abs(golden.min), abs(target.max), abs(target.min))
    norm = max(golden.norm, target.norm)
    if not largest:
        return 0.0
    # A norm below zero is none: some kernels overflow.
    if norm <= 0.0 or largest > _MASK:
        return None
    elements = extent(golden.shape).elements
    number = _distinct(golden, largest, norm)
    root = math.sqrt(number)
    size = norm / math.sqrt(elements)
    # The statistics of a short type may be rounded to it as well.
    rounded = max(_rounded(target), _rounded(golden))
    of_norm = max(0.0, abs(target.norm - golden.norm) / norm - rounded)
    # The inverse of both ways in which errors move the norm.
    of_norm = math.sqrt(2.0 * (math.hypot(1.0 / number, of_norm) - 1.0 / number))
    of_mean = max(0.0, abs(target.mean - golden.mean) - rounded * abs(golden.mean)) / size * root
    # An error may have the size of its element, or that of all elements.
    scale = math.sqrt(largest * size)
    of_max, of_min = abs(target.max - golden.max) / scale, abs(target.min - golden.min) / scale
    known = max(of_max, of_min, of_mean, 1e-30)
    weights = (
        1.0 / (1.0 + (rounded * root / known) ** 2),
        1.0 / (1.0 + (rounded * abs(golden.mean) / size * root / known) ** 2),
    )
    total = 2.0 + sum(weights)
    squares = of_max * of_max + of_min * of_min + weights[0] * of_norm * of_norm + weights[1] * of_mean * of_mean
    # No error is larger than both tensors together.
    return min(2.0, math.sqrt(squares / total))


def _rounded(item: Item) -> float:
    """The unit roundoff of an item's statistics: of its own type, where they are numbers of that type."""
    roundoff = unit_roundoff(item.dtype)
    if roundoff <= _FLOAT32:
        return _FLOAT32
    of_type = format_of(item.dtype or "")
    is_short = of_type is not None and all(nearest(value, of_type) == value for value in (item.norm, item.mean))
    return roundoff if is_short else _FLOAT32


def is_told_exactly(item: Item) -> bool:
    """True if a dump that says the same of two items shows that what they are made of is the same.

    Many values round to one number of a short type, be it the item itself or the statistics of one.
    """
    if extent(item.shape).elements == 1:
        return unit_roundoff(item.dtype) <= _FLOAT32
    return item.md5 is not None or _rounded(item) <= _FLOAT32


def _distinct(item: Item, largest: float, norm: float) -> float:
    """About how many independent errors make up those of a tensor.

    All rows share the rounding errors of a weight, so that those of one row count. Of n normal numbers the largest is
    about sqrt(2 ln n) times their rms. Where it is larger, few elements are large.
    """
    elements = next((size for size in reversed(item.shape or ()) if size > 1), 1)
    if item.max == item.min or elements < 2:
        return 1.0
    return max(1.0, min(float(elements), (norm / largest) ** 2 * 2.0 * math.log(elements)))


def is_masked(item: Item) -> bool:
    """True if a tensor has numbers that are no model's, or that are not finite."""
    return any(type(value) is float and not abs(value) <= _MASK for value in (item.max, item.min))
