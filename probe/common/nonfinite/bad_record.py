"""Records with values that are not finite: the parts that are not, and the other records that explain some of them."""

from __future__ import annotations

from typing import NamedTuple

from probe.common.dump.naming import BACKWARD, FORWARD, is_gradients, is_module, parse, record_name
from probe.common.dump.reading.call_tree import CallTree

INPUT, PARAMETER, OUTPUT, EXPLAINED, UNWRITTEN = 1, 2, 4, 8, 16
"""The parts of a record that are not finite: an input, a parameter, an output. `EXPLAINED`: another record of this
rank, later in the file, made it. `UNWRITTEN`: its input is memory that was never written."""


class BadRecord(NamedTuple):
    """A record with values that are not finite."""

    number: int
    """The number of the record among those of its rank."""
    name: str
    flags: int
    input: str = ""
    """The first input or parameter that is not finite."""
    output: str = ""
    """The first output that is not finite."""
    unwritten: str = ""
    """The record that gave the memory which was never written."""
    inside: str = ""
    """The module of which all inputs are finite, where something inside of it that is not recorded made its input."""
    mask: str = ""
    """The record that made the infinities, which were asked for, of which this one made something else."""


def mark_explained(bad: list[BadRecord], tree: CallTree | None) -> list[BadRecord]:
    """Mark the records that another record explains, which need not be before them.

    The gradients of a module's parameters stand before its backward, its backward may stand before those of the calls
    inside of it, and what a forward call got or gave goes into its backward as well.
    """
    inside = set() if tree is None else tree.around_any(record.name for record in bad)
    backwards = {parsed.base: record.number for record in bad
                 if is_module(record.name) and (parsed := parse(record.name)) is not None
                 and parsed.direction == BACKWARD}  # fmt: skip
    names = {record.name for record in bad}
    weights = {
        record.name: record.input for record in bad if record.flags & PARAMETER and not record.flags & INPUT
    }  # fmt: skip
    made_inside = {record.name for record in bad if record.flags == OUTPUT and is_module(record.name)}
    marked = []
    for record in bad:
        if tree is not None and not is_module(record.name):
            module = tree.module(record.name) or ""
            record = _with_weight(record, weights.get(module, ""))
            if record.flags & INPUT and module in made_inside:
                record = record._replace(inside=module)
        flags = record.flags
        parsed = parse(record.name)
        if is_gradients(record.name):
            if parsed is not None and backwards.get(parsed.base, -1) > record.number:
                flags |= EXPLAINED
        elif flags == OUTPUT and record.name in inside:
            flags |= EXPLAINED
        elif (
            parsed is not None
            and parsed.direction == BACKWARD
            and record_name(parsed._replace(direction=FORWARD)) in names
        ):
            flags |= INPUT
        marked.append(record._replace(flags=flags))
    return marked


def _with_weight(record: BadRecord, weight: str) -> BadRecord:
    """A call inside of a module whose `weight` is not finite, and whose inputs are, has got that weight."""
    if not weight or not (record.flags & INPUT or record.mask):
        return record
    return record._replace(flags=(record.flags & ~INPUT) | PARAMETER, input=weight, mask="")
