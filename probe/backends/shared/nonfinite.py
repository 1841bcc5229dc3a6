"""Fields of an entry for a tensor with NaN or infinities: the number of such elements, the extremes of the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from probe.common.interfaces import Entry

COUNT, LARGEST, SMALLEST = "Nonfinite", "Finite Max", "Finite Min"


def shows(entry: Entry) -> bool:
    """True if the statistics of floating-point numbers in host memory show that something is not finite.

    There a NaN among the elements makes Max and Min NaN. On a device it need not.
    """
    largest, smallest = entry["Max"], entry["Min"]
    return type(largest) is float and not (-math.inf < smallest and largest < math.inf)


def counted(array: np.ndarray[Any, Any]) -> tuple[int, float, float]:
    """The number of elements that are not finite, and the extremes of the others: infinities if there are none."""
    finite = array[np.isfinite(array)]
    if not finite.size:
        return array.size, -math.inf, math.inf
    return array.size - finite.size, float(finite.max()), float(finite.min())


def add(entry: Entry, count: int, largest: float, smallest: float) -> None:
    """Put the three values behind the statistics of `entry`; the extremes are infinite where nothing is finite."""
    keys = list(entry)
    behind = {key: entry.pop(key) for key in keys[keys.index("Norm") + 1 :]}
    entry[COUNT] = int(count)
    entry[LARGEST] = largest if math.isfinite(largest) else None
    entry[SMALLEST] = smallest if math.isfinite(smallest) else None
    entry.update(behind)


def only_finite(describe: Callable[[Any], Entry | None]) -> Callable[[Any], Entry | None]:
    """`describe` for those tensors only whose elements are finite; for any other one it answers ``None``."""

    def describe_finite(value: Any) -> Entry | None:
        entry = describe(value)
        return None if entry is None or shows(entry) else entry

    return describe_finite
