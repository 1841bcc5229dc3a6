"""A batch that one run computes in parts, as gradient accumulation does.

The calls of the parts have no counterparts among those of the whole, so that none of them is a divergence; what they
come to, the gradients and the next parameters, would decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe.common.align.row import Row
from probe.common.dump.naming import FORWARD, parse
from probe.compare.divergence.differences import item_name
from probe.compare.result import Difference, Unexplained


def batch_in_parts(first: Unexplained, rows: Sequence[Row]) -> Difference | None:
    """The difference that one run makes several calls of as many rows as a call of the other one has.

    Args:
        first: what is found first.
        rows: all rows.

    Returns:
        ``None`` if the item that shows the finding has the same number of rows, or all calls together have another.
    """
    row = next((row for row in rows if row.record == first.record and item_name(row) == first.item), None)
    if row is None or row.target is None or row.golden is None or not row.target.shape or not row.golden.shape:
        return None
    sizes = row.target.shape[0], row.golden.shape[0]
    if sizes[0] == sizes[1] or row.target.shape[1:] != row.golden.shape[1:]:
        return None
    records = (
        {each.record for each in rows if each.target is not None},
        {each.golden_record or each.record for each in rows if each.golden is not None},
    )
    numbers = _calls_of(first.record, records[0]), _calls_of(first.golden_record, records[1])
    if numbers[0] == numbers[1] or numbers[0] * sizes[0] != numbers[1] * sizes[1]:
        return None
    reason = (
        f"the batch is in other parts: {numbers[0]} calls of {sizes[0]} rows and in the golden run {numbers[1]} of "
        f"{sizes[1]}; calls of parts are not compared"
    )
    return Difference(first.record, first.golden_record, first.item, reason)


def _calls_of(record: str, records: Iterable[str]) -> int:
    """The number of forward calls of the function or module of `record`."""
    parsed = parse(record)
    others = map(parse, records)
    base = "" if parsed is None else parsed.base
    return sum(other is not None and other.base == base and other.direction == FORWARD for other in others)
