"""The overlap of two runs, in which they can diverge: what both levels record, up to where the first run ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from probe.common.align.row import Row
from probe.common.dump.levels import Levels, both_record, differ
from probe.common.dump.naming import PARAMETERS_GRAD, parse
from probe.compare.divergence.aligned_calls import Trees
from probe.compare.result import TARGET, Truncation


class Overlap(NamedTuple):
    """The part of two runs in which a divergence is searched."""

    rows: Sequence[Row]
    golden_order: Sequence[str]
    trees: Trees
    level: str


def overlap(
    rows: Sequence[Row], golden_order: Sequence[str], trees: Trees, levels: Levels, truncations: Sequence[Truncation]
) -> Overlap:
    """Leave out what one side lacks because of its level, or because it ended.

    Args:
        rows: the rows of a comparison.
        golden_order: the records of the golden side in their order.
        trees: the call trees of target and golden side.
        levels: the levels of both sides.
        truncations: the sides that end early.
    """
    if not all(trees):
        # With a tree on one side alone no call would have the modules of its counterpart around it.
        trees = None, None
    if differ(levels):
        rows = [row for row in rows if _is_matched(row) or both_record(row.record, levels)]
        if "L1" in levels:
            trees = None, None  # At L1 no function has a module around it, and at mix each has.
    for truncation in truncations:
        rows = _without_what_is_lost(rows, golden_order, truncation)
    if differ(levels) or truncations:
        left = {row.record if row.target is None else row.golden_record for row in rows}
        golden_order = [name for name in golden_order if name in left]
    return Overlap(rows, golden_order, trees, "L0" if "L0" in levels else levels[0] or "")


def _without_what_is_lost(rows: Sequence[Row], golden_order: Sequence[str], truncation: Truncation) -> list[Row]:
    """The rows without those of the other side that a longer run might have matched."""
    if truncation.side == TARGET:
        matched = {row.golden_record or "": row.record for row in rows if _is_matched(row)}
        lost = _lost(golden_order, matched, truncation)
        return [row for row in rows if row.target is not None or not _is_lost(row.record, lost)]
    order = list(dict.fromkeys(row.record for row in rows if row.target is not None))
    matched = {row.record: row.golden_record or "" for row in rows if _is_matched(row)}
    lost = _lost(order, matched, truncation)
    return [row for row in rows if row.golden is not None or not _is_lost(row.record, lost)]


def _is_matched(row: Row) -> bool:
    return row.target is not None and row.golden is not None


def _lost(order: Sequence[str], matched: Mapping[str, str], truncation: Truncation) -> set[str]:
    """The records of the longer side, from the match of the truncated side's last record on.

    The rest counts if nothing has shifted before; the order of calls tells more then.
    """
    last = max((index for index, name in enumerate(order) if name in matched), default=-1)
    if last >= 0 and matched[order[last]] == truncation.record:
        return set(order[last:])
    return {name for name, other in matched.items() if other == truncation.record}


def _is_lost(record: str, lost: set[str]) -> bool:
    if record in lost:
        return True
    # Gradients of a module's parameters come one by one, and calls of other modules between them.
    parsed = parse(record)
    return parsed is not None and parsed.direction == PARAMETERS_GRAD
