"""The overflow levels of the reference tool: ``medium``, ``high`` and ``critical``.

A tensor is abnormal if its maximum or minimum is no finite number. Parameters and gradients of parameters are not
looked at, nor are outputs inside of a dictionary or a list of outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.graph.overflow_levels import CRITICAL, HIGH, MEDIUM, NONE

_GROWTH = 100
"""An output whose norm is so many times that of the largest input is `HIGH`."""


def recorded_level(node: str, items: Iterable[Item]) -> int:
    """The level of a call, an index in `LEVELS`.

    Args:
        node: the name of the call's record.
        items: what was recorded of it.
    """
    outermost = len(node) + len(".output.")
    inputs: list[Item] = []
    outputs: list[Item] = []
    for item in items:
        if item.state == INPUT:
            inputs.append(item)
        elif item.state == OUTPUT and "." not in item.name[outermost:]:
            outputs.append(item)
    is_input_abnormal = any(map(_is_abnormal, inputs))
    if any(map(_is_abnormal, outputs)):
        return HIGH if is_input_abnormal else CRITICAL
    if is_input_abnormal:
        return MEDIUM
    return HIGH if _grows(inputs, outputs) else NONE


def _is_abnormal(item: Item) -> bool:
    return _is_nonfinite(item.max) or _is_nonfinite(item.min)


def _is_nonfinite(value: Any) -> bool:
    return type(value) is float and not math.isfinite(value)


def _grows(inputs: Iterable[Item], outputs: Iterable[Item]) -> bool:
    largest = max(map(_norm, inputs), default=0.0)
    return largest > 0 and max(map(_norm, outputs), default=0.0) > _GROWTH * largest


def _norm(item: Item) -> float:
    norm = item.norm
    return float(norm) if type(norm) in (float, int) and norm == norm else 0.0
