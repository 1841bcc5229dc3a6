"""The part of two runs in which they can part: what the levels of both record, up to where the first of them ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from probe.common.dump.levels import Levels, both_record, differ
from probe.common.dump.naming import PARAMETERS_GRAD, parse
from probe.common.match.row import Row
from probe.compare.divergence.aligned_calls import Trees
from probe.compare.divergence.truncation import TARGET, Ending


class CommonPart(NamedTuple):
    """What a divergence is sought in."""

    rows: Sequence[Row]
    golden_order: Sequence[str]
    trees: Trees
    level: str


def common_part(
    rows: Sequence[Row], golden_order: Sequence[str], trees: Trees, levels: Levels, endings: Sequence[Ending]
) -> CommonPart:
    """Leave out what one side lacks because of its level, or because it ended.

    Args:
        rows: the rows of a comparison.
        golden_order: the records of the golden side in their order.
        trees: the call trees of target and golden side.
        levels: what they record.
        endings: the sides that end early.
    """
    if differ(levels):
        rows = [row for row in rows if _has_both(row) or both_record(row.record, levels)]
        if "L1" in levels:
            trees = None, None  # At L1 no function has a module around it, and at mix each has.
    for ending in endings:
        rows = _without_what_is_lost(rows, golden_order, ending)
    if differ(levels) or endings:
        left = {row.record if row.target is None else row.golden_record for row in rows}
        golden_order = [name for name in golden_order if name in left]
    return CommonPart(rows, golden_order, trees, "L0" if "L0" in levels else levels[0] or "")


def _without_what_is_lost(rows: Sequence[Row], golden_order: Sequence[str], ending: Ending) -> list[Row]:
    """The rows without those of the other side that a longer run might have met."""
    if ending.side == TARGET:
        met = {row.golden_record or "": row.record for row in rows if _has_both(row)}
        lost = _lost(golden_order, met, ending)
        return [row for row in rows if row.target is not None or not _is_lost(row.record, lost)]
    order = list(dict.fromkeys(row.record for row in rows if row.target is not None))
    met = {row.record: row.golden_record or "" for row in rows if _has_both(row)}
    lost = _lost(order, met, ending)
    return [row for row in rows if row.golden is not None or not _is_lost(row.record, lost)]


def _has_both(row: Row) -> bool:
    return row.target is not None and row.golden is not None


def _lost(order: Sequence[str], met: Mapping[str, str], ending: Ending) -> set[str]:
    """Of the records of the side that goes on, in their `order`: what the last one of the other met, and what follows.

    What follows counts if nothing has shifted before; the order of calls tells more then.
    """
    last = max((place for place, name in enumerate(order) if name in met), default=-1)
    if last >= 0 and met[order[last]] == ending.record:
        return set(order[last:])
    return {name for name, other in met.items() if other == ending.record}


def _is_lost(record: str, lost: set[str]) -> bool:
    if record in lost:
        return True
    # Gradients of a module's parameters come one by one, and calls of other modules between them.
    parsed = parse(record)
    return parsed is not None and parsed.direction == PARAMETERS_GRAD
