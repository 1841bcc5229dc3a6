"""Overflow of values: the state of each call's inputs and outputs, and the first value of a run that is not finite.

A call has the worst level that one of its tensors gives it:

- `CRITICAL`: an output is not finite, and inputs and parameters are;
- `HIGH`: an output is not finite, and neither is an input or a parameter;
- `MEDIUM`: an input or a parameter is not finite, and the outputs are.

Two more say what a healthy run does, too, and are hints: with `SATURATED` an output is at the limit of its type and no
input is, with `GROWTH` an output has more than a hundred times the norm of the largest input, which is what every
``rsqrt`` of a normalisation does.

An infinity that was meant is no overflow: that is how attention is masked; see `probe.common.nonfinite.lineages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from probe.common.align.calls import Row
from probe.common.collectives.collectives import is_communication
from probe.common.dump.naming import is_gradients
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Item
from probe.common.nonfinite.call_values import CallValues, is_number, limit_of, part_of_limit
from probe.common.nonfinite.followed_calls import FollowedCalls
from probe.common.nonfinite.lineages import INPUT, OUTPUT, PARAMETER, BadRecord
from probe.graph.diff import GraphDiff
from probe.graph.graph import Graph

NONE, SATURATED, GROWTH, MEDIUM, HIGH, CRITICAL = range(6)

LEVELS = ("", "saturated", "growth", "medium", "high", "critical")
"""Their names. Those below `MEDIUM` are hints, and no level."""

_GROWTH = 100
"""Growth of a norm in one call that is marked; a guess."""


class OverflowLevels(NamedTuple):
    """The overflow levels of one graph."""

    levels: bytearray
    """Indices in `LEVELS`, one for each node."""
    first: int
    """The first node with a value that is not finite, in order of execution; -1 where all are."""


def overflow(graph: Graph, dump: Dump) -> OverflowLevels:
    """The overflow levels of a dump, of which `graph` is the graph.

    Raises:
        DumpFormatError: a record is damaged.
    """
    by_name = {record.name: record for record in dump}
    return _overflow(graph, lambda node: dump.items(by_name[graph.names[node]]) if graph.has_record[node] else [])


def overflows(diff: GraphDiff) -> tuple[OverflowLevels, OverflowLevels | None]:
    """The overflow levels of the target and of the golden run; ``None`` if there is no golden run."""
    target = _overflow(diff.target, lambda node: _target_items(diff.items.get(node, ())))
    if diff.golden is None:
        return target, None
    partners = {other: node for node, other in enumerate(diff.pairs) if other >= 0}

    def golden_items(node: int) -> Iterator[Item]:
        rows = diff.items.get(partners[node], ()) if node in partners else diff.golden_items.get(node, ())
        return (row.golden for row in rows if row.golden is not None)

    return target, _overflow(diff.golden, golden_items)


def _target_items(rows: Iterable[Row]) -> Iterator[Item]:
    return (row.target for row in rows if row.target is not None)


def _overflow(graph: Graph, items: Callable[[int], Iterable[Item]]) -> OverflowLevels:
    levels = bytearray(len(graph))
    calls = FollowedCalls()
    exchanged: list[BadRecord] = []
    for node in range(len(graph)):
        if graph.has_record[node]:
            name, values = graph.names[node], CallValues.of(items(node))
            calls.pass_by(node, name)
            if is_communication(name):
                # A value from another rank is not a consequence of earlier values of this rank.
                passed = calls.communicate(node, name, values.inputs, values.outputs)
                flags = INPUT * bool(passed.inputs) | OUTPUT * bool(passed.outputs)
                exchanged += [BadRecord(node, name, flags)] if flags else []
            elif not calls.look_at(node, name, values):
                levels[node] = _hint(values)
    names = [name if graph.has_record[node] else "" for node, name in enumerate(graph.names)]
    bad = sorted([*calls.end(names), *exchanged], key=lambda record: record.number)
    for record in bad:
        levels[record.number] = _level(record)
    return OverflowLevels(levels, bad[0].number if bad else -1)


def _level(record: BadRecord) -> int:
    """The level of a call with values that are not finite."""
    if not record.flags & OUTPUT:
        return MEDIUM
    # A gradient is what came in and was added up.
    return HIGH if record.flags & (INPUT | PARAMETER) or is_gradients(record.name) else CRITICAL


def _hint(values: CallValues) -> int:
    """A remarkable property of a call whose values are all finite."""
    inputs = [*values.inputs, *values.parameters]
    largest = max(map(_norm, inputs), default=0.0)
    if largest > 0 and any(_norm(item) > _GROWTH * largest for item in values.outputs):
        return GROWTH
    limits = [limit for item in values.outputs if part_of_limit(item) >= 1 and (limit := limit_of(item)) is not None]
    # An input has it, or an argument asks for it.
    is_given = any(part_of_limit(item) >= 1 for item in inputs)
    if not limits or is_given or any(abs(number) >= min(limits) for number in values.numbers):
        return NONE
    return SATURATED


def _norm(item: Item) -> float:
    return float(item.norm) if is_number(item.norm) else 0.0
