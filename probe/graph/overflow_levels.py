"""Where values overflow: what each call made of its inputs, and the first value of a run that is not a finite number.

A call has the worst level that one of its tensors gives it:

- `CRITICAL`: an output is not finite, and inputs and parameters are;
- `HIGH`: an output is not finite, and neither is an input or a parameter;
- `MEDIUM`: an input or a parameter is not finite, and the outputs are.

Two more say what a healthy run does, too, and are hints: with `SATURATED` an output is at the limit of its type and no
input is, with `GROWTH` an output has more than a hundred times the norm of the largest input, which is what every
``rsqrt`` of a normalisation does.

A minus infinity that an argument of the call asks for is no overflow, nor is what follows from it alone: that is how
attention is masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from probe.common.dump.naming import function_name
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import INPUT, PARAMETERS, PARAMETERS_GRAD, Item
from probe.common.match.row import Row
from probe.common.metrics.dtypes import plain_name
from probe.graph.diff import GraphDiff
from probe.graph.graph import Graph

NONE, SATURATED, GROWTH, MEDIUM, HIGH, CRITICAL = range(6)

LEVELS = ("", "saturated", "growth", "medium", "high", "critical")
"""Their names. Those below `MEDIUM` are hints, and no level."""

_GROWTH = 100
_LIMITS = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
    "float8e4m3fn": 448.0,
    "float8e4m3fnuz": 240.0,
    "float8e5m2": 57344.0,
    "float8e5m2fnuz": 57344.0,
    "hifloat8": 32768.0,
}
"""The largest number of each type."""


class Overflow(NamedTuple):
    """What overflows in one graph."""

    levels: bytearray
    """Indices in `LEVELS`, one for each node."""
    first: int
    """The first node with a value that is not finite, in order of execution; -1 where all are."""


def overflow(graph: Graph, dump: Dump) -> Overflow:
    """What overflows in a dump, of which `graph` is the graph.

    Raises:
        DumpFormatError: a record is damaged.
    """
    by_name = {record.name: record for record in dump}
    return _overflow(graph, lambda node: dump.items(by_name[graph.names[node]]) if graph.has_record[node] else [])


def overflows(diff: GraphDiff) -> tuple[Overflow, Overflow | None]:
    """What overflows in the target and in the golden run; ``None`` where there is no golden run."""
    target = _overflow(diff.target, lambda node: _of_target(diff.items.get(node, ())))
    if diff.golden is None:
        return target, None
    partners = {other: node for node, other in enumerate(diff.pairs) if other >= 0}

    def golden_items(node: int) -> Iterator[Item]:
        rows = diff.items.get(partners[node], ()) if node in partners else diff.golden_items.get(node, ())
        return (row.golden for row in rows if row.golden is not None)

    return target, _overflow(diff.golden, golden_items)


def _of_target(rows: Iterable[Row]) -> Iterator[Item]:
    return (row.target for row in rows if row.target is not None)


def _overflow(graph: Graph, items: Callable[[int], Iterable[Item]]) -> Overflow:
    levels = bytearray(len(graph))
    first = -1
    masks = _Masks()
    for node in range(len(graph)):
        if not graph.has_record[node] or "empty" in function_name(graph.names[node]):
            # Memory that nobody has written to may hold anything.
            continue
        call = _Call.of(items(node))
        if call.is_finite or masks.explain(call):
            levels[node] = GROWTH if call.grows() else SATURATED if call.saturates() else NONE
            continue
        levels[node] = call.level()
        if first < 0:
            first = node
    return Overflow(levels, first)


@dataclass
class _Call:
    """The tensors of one call, and its plain numbers."""

    inputs: list[Item]
    """Parameters, too."""
    outputs: list[Item]
    """Gradients of parameters, too."""
    numbers: list[float]

    @classmethod
    def of(cls, items: Iterable[Item]) -> _Call:
        call = cls([], [], [])
        for item in items:
            if not item.is_tensor:
                if item.state == INPUT and type(item.value) in (int, float):
                    call.numbers.append(item.value)
            else:
                # A gradient is what came in and was added up, so that it is both.
                if item.state in (INPUT, PARAMETERS, PARAMETERS_GRAD):
                    call.inputs.append(item)
                if item.state not in (INPUT, PARAMETERS):
                    call.outputs.append(item)
        return call

    @property
    def is_finite(self) -> bool:
        return not any(map(_is_nonfinite, self.inputs)) and not any(map(_is_nonfinite, self.outputs))

    def level(self) -> int:
        """The level of a call with values that are not finite."""
        if not any(map(_is_nonfinite, self.outputs)):
            return MEDIUM
        return HIGH if any(map(_is_nonfinite, self.inputs)) else CRITICAL

    def grows(self) -> bool:
        largest = max(map(_norm, self.inputs), default=0.0)
        return largest > 0 and any(_norm(item) > _GROWTH * largest for item in self.outputs)

    def saturates(self) -> bool:
        """Whether an output is at the limit of its type, though no input is and no argument asks for it."""
        limits = [limit for item in self.outputs if (limit := _limit_reached(item)) is not None]
        if not limits or any(_limit_reached(item) is not None for item in self.inputs):
            return False
        return not any(abs(number) >= min(limits) for number in self.numbers)


class _Masks:
    """Knows whether minus infinities were asked for: follows a run call by call."""

    def __init__(self) -> None:
        self._were_asked_for = False
        self._came_unasked = False

    def explain(self, call: _Call) -> bool:
        """Whether minus infinities are all that is not finite in the next call, and are there on purpose."""
        if not all(map(_is_masked, filter(_is_nonfinite, call.inputs + call.outputs))):
            return False
        if any(map(_is_nonfinite, call.inputs)):
            return self._were_asked_for and not self._came_unasked
        is_asked_for = -math.inf in call.numbers
        self._were_asked_for |= is_asked_for
        self._came_unasked |= not is_asked_for
        return is_asked_for


def _is_nonfinite(item: Item) -> bool:
    return item.has_nan or item.has_inf


def _is_masked(item: Item) -> bool:
    """Whether a minus infinity may be all that is not finite in a tensor; of its mean and norm that says nothing."""
    return item.min == -math.inf and (item.max == -math.inf or _is_number(item.max))


def _is_number(value: Any) -> bool:
    return type(value) in (float, int) and math.isfinite(value)


def _limit_reached(item: Item) -> float | None:
    """The limit of the type of a tensor, if the tensor reaches it."""
    limit = None if item.dtype is None else _LIMITS.get(plain_name(item.dtype))
    if limit is None:
        return None
    # A maximum is written with as many digits as its type has, and compares as what it was.
    reached = any(_is_number(value) and abs(value) >= limit for value in (item.max, item.min))
    return limit if reached else None


def _norm(item: Item) -> float:
    return float(item.norm) if _is_number(item.norm) else 0.0
