"""The overflow levels of msProbe: ``medium``, ``high`` and ``critical``.

A tensor is abnormal if its maximum, minimum or mean is no finite number. Parameters and gradients of parameters are not
looked at, nor is what stands inside of a dictionary, as the outputs of many models do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.graph.overflow_levels import CRITICAL, HIGH, MEDIUM, NONE

_GROWTH = 100
"""An output whose norm is so many times that of the largest input is `HIGH`."""

_UNWRITTEN = ("Torch.empty.", "Torch.empty_like.", "Torch.empty_strided.")
"""Functions whose results hold arbitrary values, as nobody has written to them."""


def msprobe_level(node: str, items: Iterable[Item]) -> int:
    """The level of a call, an index in `LEVELS`.

    Args:
        node: the name of the call's record.
        items: what was recorded of it.
    """
    if node.startswith(_UNWRITTEN):
        return NONE
    inputs: list[Item] = []
    outputs: list[Item] = []
    for item in items:
        if item.is_tensor and item.state in (INPUT, OUTPUT) and _is_looked_at(item, len(node)):
            (inputs if item.state == INPUT else outputs).append(item)
    is_input_abnormal = any(map(_is_abnormal, inputs))
    if any(map(_is_abnormal, outputs)):
        return HIGH if is_input_abnormal else CRITICAL
    if is_input_abnormal:
        return MEDIUM
    return HIGH if _grows(inputs, outputs) else NONE


def _is_looked_at(item: Item, start: int) -> bool:
    """True if nothing but lists is around a value, which the places in its name tell."""
    name = item.name
    _, _, path = name[start:].partition(f".{item.state}.")
    first, _, inside = path.partition(".")
    if inside and not inside.replace(".", "").isdecimal():
        return False
    # The keyword arguments themselves are a dictionary.
    return item.state == INPUT or first.isdecimal()


def _is_abnormal(item: Item) -> bool:
    return _is_nonfinite(item.max) or _is_nonfinite(item.min) or _is_nonfinite(item.mean)


def _is_nonfinite(value: Any) -> bool:
    return type(value) is float and not math.isfinite(value)


def _grows(inputs: Iterable[Item], outputs: Iterable[Item]) -> bool:
    largest = max(map(_norm, inputs), default=0.0)
    return largest > 0 and max(map(_norm, outputs), default=0.0) > _GROWTH * largest


def _norm(item: Item) -> float:
    norm = item.norm
    return float(norm) if type(norm) in (float, int) and norm == norm else 0.0
