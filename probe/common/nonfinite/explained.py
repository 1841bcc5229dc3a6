"""Records that are not finite and are explained by another record, which need not be before them."""

from __future__ import annotations

from probe.common.dump.naming import BACKWARD, FORWARD, is_gradients, is_module, parse, record_name
from probe.common.dump.reading.call_tree import CallTree
from probe.common.nonfinite.bad_record import EXPLAINED, INPUT, OUTPUT, PARAMETER, BadRecord


def mark_explained(bad: list[BadRecord], tree: CallTree | None) -> list[BadRecord]:
    """Mark what another record explains, which need not stand before it.

    The gradients of a module's parameters stand before its backward, its backward may stand before those of the calls
    inside of it, and what a forward call got or gave goes into its backward as well.
    """
    inside = set() if tree is None else tree.around_any(record.name for record in bad)
    backwards = {parsed.base: record.place for record in bad
                 if is_module(record.name) and (parsed := parse(record.name)) is not None
                 and parsed.direction == BACKWARD}  # fmt: skip
    names = {record.name for record in bad}
    weights = {
        record.name: record.input for record in bad if record.flags & PARAMETER and not record.flags & INPUT
    }  # fmt: skip
    made_inside = {record.name for record in bad if record.flags == OUTPUT and is_module(record.name)}
    found = []
    for record in bad:
        if tree is not None and not is_module(record.name):
            module = tree.module(record.name) or ""
            record = _with_weight(record, weights.get(module, ""))
            if record.flags & INPUT and module in made_inside:
                record = record._replace(inside=module)
        flags = record.flags
        parsed = parse(record.name)
        if is_gradients(record.name):
            if parsed is not None and backwards.get(parsed.base, -1) > record.place:
                flags |= EXPLAINED
        elif flags == OUTPUT and record.name in inside:
            flags |= EXPLAINED
        elif (
            parsed is not None
            and parsed.direction == BACKWARD
            and record_name(parsed._replace(direction=FORWARD)) in names
        ):
            flags |= INPUT
        found.append(record._replace(flags=flags))
    return found


def _with_weight(record: BadRecord, weight: str) -> BadRecord:
    """A call inside of a module whose `weight` is not finite, and whose inputs are, has got that weight."""
    if not weight or not (record.flags & INPUT or record.mask):
        return record
    return record._replace(flags=(record.flags & ~INPUT) | PARAMETER, input=weight, mask="")
