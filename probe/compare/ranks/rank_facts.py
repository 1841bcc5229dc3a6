"""The parameters, their gradients and the communication in the dump of one rank and step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from probe.common.collectives.collectives import CollectiveCall, collective_call, is_communication
from probe.common.dump.naming import is_gradients, parse
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Item
from probe.common.dump.stack_text import short_frame, users_line
from probe.common.numerics.formats import unit_roundoff

if TYPE_CHECKING:
    from probe.compare.ranks.combination import Sums

_PARAMETER = "parameter:"


class Part(NamedTuple):
    """The sketch of a tensor of one rank."""

    sums: Sums
    unit: float
    """The unit roundoff of its dtype; 0 of whole numbers."""
    elements: int
    shape: tuple[int, ...] = ()
    is_constant: bool = False
    """True if all elements are the same, as those of a bias at the beginning, or if nothing tells."""


@dataclass(frozen=True)
class RankFacts:
    """One rank in one step."""

    rank: int
    calls: list[CollectiveCall]
    parameters: Mapping[str, Part]
    """The parameters at the beginning of the step, by their names."""
    local: Mapping[str, Part]
    """The gradients that the backwards of this rank accumulated."""
    micro_batches: Mapping[str, int]
    """The number of backwards that a gradient in `local` is accumulated from."""
    taken: Mapping[str, Part]
    """The gradients that an optimizer took."""
    stacks: Mapping[str, list[str]] = field(default_factory=dict)

    def line(self, record: str) -> str:
        """The line of the program that made a call; empty where it is not recorded."""
        stack = self.stacks.get(record)
        return short_frame(users_line(stack)) if stack else ""


def part_of(item: Item) -> Part | None:
    """The sketch of a tensor; ``None`` where it has none, or leaves elements out that are not finite."""
    found = item.sketch
    if found is None or found.excluded:
        return None
    shape = item.shape or ()
    return Part(found.sums.astype("f8"), unit_roundoff(item.dtype), math.prod(shape), shape, item.max == item.min)


def facts_of(dump: Dump, rank: int) -> RankFacts:
    """Read what is needed of the dump of a rank.

    Raises:
        DumpFormatError: the dump is damaged.
    """
    calls: list[CollectiveCall] = []
    local: dict[str, Part] = {}
    micro_batches: Counter[str] = Counter()
    for index, record in enumerate(dump):
        if is_communication(record.name):
            calls.append(collective_call(rank, index, record))
        elif is_gradients(record.name):
            found = _gradients(record.name, dump.items(record))
            # The last one is the gradient with all that was accumulated.
            local.update(found)
            micro_batches.update(found.keys())
    taken = {
        each.name: Part(each.gradient.sums.astype("f8"), 0.0, each.elements)
        for update in dump.updates
        for each in update.parameters
        # A part of a parameter that is split over ranks is no replica.
        if each.gradient is not None and not each.gradient.excluded and not each.note
    }
    stacks = {call.record: (dump.stacks or {}).get(call.record, []) for call in calls}
    return RankFacts(rank, calls, _parameters(dump), local, micro_batches, taken, stacks)


def _gradients(record: str, items: list[Item]) -> dict[str, Part]:
    """The gradients of a record by the names of their parameters."""
    parsed = parse(record)
    if parsed is None:
        return {}
    path = parsed.base.rpartition(".")[0].partition(".")[2]
    return {
        f"{path}{'.' * bool(path)}{item.name[len(record) + 1 :]}": part
        for item in items
        if (part := part_of(item)) is not None
    }


def _parameters(dump: Dump) -> dict[str, Part]:
    """The parameters as the step's first call of each takes them."""
    table = dump.sketches
    names = {} if table is None else table.first_of(_PARAMETER)
    wanted = {item: name for name, item in names.items()}
    found: dict[str, Part] = {}
    for record in dump if wanted else ():
        for item in dump.items(record):
            name = wanted.get(item.name)
            part = None if name is None else part_of(item)
            if name is not None and part is not None:
                found[name] = part
    return found
