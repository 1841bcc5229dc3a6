"""The rows of a node as the rules of ``compare`` have to see them to come to the verdict of the graph.

They are those of the graph but for what one side lacks, for calls without inputs, and for some calls of collectives.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.align.row import Row
from probe.common.dump.naming import function_name
from probe.common.dump.reading.records import OUTPUT, Item
from probe.compare.result import Mode
from probe.msprobe_rules.compare.rows import IGNORED, ONLY_OUTPUTS

NORM = 7
"""The index of the norm's relative error in the metrics of statistics."""


def as_judged(rows: Sequence[Row], mode: Mode) -> tuple[list[Row], list[Row]]:
    """The rows of a node that are judged, and the rows to judge in the place of each.

    Args:
        rows: all that the target has.
        mode: what the dumps are compared by.
    """
    name = function_name(rows[0].record)
    has_inputs = any(row.target is not None and row.target.state != OUTPUT for row in rows)
    # Without inputs, msProbe leaves out those alone whose memory nobody has written to.
    if name in IGNORED and (has_inputs or "empty" in name):
        return [], []
    is_collective = name in ONLY_OUTPUTS and has_inputs
    judged = [row for row in rows if _is_judged(row, is_collective)]
    if mode is Mode.CHECKSUM:
        judged = [row for row in rows if row.target is not None and (row.target.state == OUTPUT or not is_collective)]
    return judged, [_twin(row, mode, is_collective) for row in judged]


def _is_judged(row: Row, is_collective: bool) -> bool:
    """True if both sides have a value there, or the golden run has nothing at all, or the target what is not finite."""
    if row.target is None or row.target.dtype is None or (is_collective and row.target.state != OUTPUT):
        return False
    return not _is_null(row.golden) or row.target.has_nan or row.target.has_inf


def _is_null(item: Item | None) -> bool:
    return item is not None and item.dtype is None


def _twin(row: Row, mode: Mode, is_collective: bool) -> Row:
    target = row.target
    assert target is not None
    if _is_null(row.golden):
        golden = Item(target.name, target.state, target.dtype, target.shape, requires_grad=target.requires_grad)
    else:
        # A row that the golden run lacks has no type, no shape and no gradient, and differs in all of them.
        golden = row.golden or Item(target.name, target.state)
    metrics = row.metrics
    if mode is Mode.CHECKSUM:
        # No value is a value like any other, and not the same as no item.
        metrics = tuple("" if _is_null(item) else text for item, text in zip((target, row.golden), metrics))
    if mode is Mode.STATISTICS and (is_collective or type(metrics[NORM]) is str):
        # Of what has no finite norm nothing is said, of a norm that was zero neither, nor of what other ranks gave.
        metrics = (*metrics[:NORM], "N/A")
    # Without its name no call is left out.
    return Row("", target, golden, row.golden_record, metrics)
