"""The amount by which two statistics differ, as a difference and a percentage of the golden one; checksums of items."""

from __future__ import annotations

import math
import zlib
from typing import Any, Union

from probe.common.dump.reading.records import Item

Cell = Union[int, float, str]

UNSUPPORTED = ("unsupported",) * 6
"""There is no data."""
SHAPE_UNMATCHED = ("shape unmatched",) * 6
NOT_AVAILABLE = ("N/A",) * 6
NOT_MEASURED = (UNSUPPORTED, SHAPE_UNMATCHED, NOT_AVAILABLE)
"""The metrics of two tensors that cannot be compared."""
SPECIAL_VALUES_DIFFER = "error: nan or inf of target and golden are not in the same places."
UNMATCHED = ("N/A",) * 8
_SAME = (0, 0)
_ALL_SAME = (0,) * 8


def compare_items(target: Item, golden: Item) -> tuple[Cell, ...]:
    """Four differences and four relative errors, of max, min, mean and norm.

    A difference is a float; a relative error is a float in percent. The integer 0 means that both sides are the same,
    NaN and None included. A text stands where there is no number: ``Nan``, ``inf``, ``-inf``, ``Diff``, ``N/A``.
    """
    if target is golden:
        return _ALL_SAME
    a, b, c, d = target.max, target.min, target.mean, target.norm
    e, f, g, h = golden.max, golden.min, golden.mean, golden.norm
    if type(a) is type(b) is type(c) is type(d) is type(e) is type(f) is type(g) is type(h) is float:
        i, j, k, m = a - e, b - f, c - g, d - h
        # Nearly all that differ are of this kind. What is not finite is not zero either when it is taken from itself.
        if i and j and k and m and e and f and g and h and (i - i) + (j - j) + (k - k) + (m - m) == 0.0:
            percents = abs(i) / abs(e) * 100, abs(j) / abs(f) * 100, abs(k) / abs(g) * 100, abs(m) / abs(h) * 100
            return i, j, k, m, *percents
    a, e = compare(target.max, golden.max)
    b, f = compare(target.min, golden.min)
    c, g = compare(target.mean, golden.mean)
    d, h = compare(target.norm, golden.norm)
    return a, b, c, d, e, f, g, h


def compare(target: Any, golden: Any) -> tuple[Cell, Cell]:
    """Difference and relative error of one statistic."""
    if type(target) is float and type(golden) is float:
        difference = target - golden
        # Nearly all pairs are of this kind. What is not finite is not zero either when it is taken from itself.
        if difference and golden and difference - difference == 0.0:
            return difference, abs(difference) / abs(golden) * 100
    return _compare(target, golden)


def _compare(target: Any, golden: Any) -> tuple[Cell, Cell]:
    if target is golden or (target == golden and type(target) is type(golden)) or str(target) == str(golden):
        return _SAME
    if not isinstance(target, (int, float)) or not isinstance(golden, (int, float)):
        return ("N/A", "N/A") if is_device(target) and is_device(golden) else ("Diff", "Diff")
    try:
        target, golden = float(target), float(golden)
    except OverflowError:
        return "Diff", "Diff"
    if math.isnan(target) or math.isnan(golden):
        return "Nan", "Nan"
    if math.isinf(target) or math.isinf(golden):
        upwards = target > 0 if math.isinf(target) else golden < 0
        return ("inf", "inf") if upwards else ("-inf", "-inf")
    difference = target - golden
    return difference, abs(difference) / abs(golden) * 100 if golden else "inf"


def fraction(cell: Cell) -> float | None:
    """A relative error as a fraction; ``None`` where the cell holds no number."""
    return None if isinstance(cell, str) else cell / 100


def checksum(item: Item | None) -> str:
    """The checksum of an item, eight or more hexadecimal digits; ``N/A`` where there is none."""
    if item is None:
        return "N/A"
    if item.md5 is not None:
        return item.md5
    if item.value is None:
        return "N/A"
    if isinstance(item.value, str) and item.dtype is not None and not item.dtype.startswith("<"):
        # Ranks and groups are shown as they are.
        return item.value
    return f"{zlib.crc32(str(item.value).encode('utf-8', 'surrogatepass')):08x}"


_DEVICES = frozenset(("npu", "cuda", "cpu", "gpu", "ascend", "xpu", "mps", "hpu"))


def is_device(value: object) -> bool:
    """True if a plain value names a device, as ``npu:0`` and ``cuda`` do."""
    return isinstance(value, str) and value.split(":")[0].lower() in _DEVICES
