"""Truncation of a side, which ends before the other: its run died, or was stopped earlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probe.common.align.calls import KeyedCall
from probe.common.align.row import Row
from probe.common.dump.levels import Levels, both_record
from probe.common.dump.reading.dump import Dump
from probe.compare.result import GOLDEN, TARGET, Truncation


def truncations(
    target: Sequence[KeyedCall],
    golden: Sequence[KeyedCall],
    rows: Sequence[Row],
    levels: Levels,
    sides: tuple[Dump, Dump],
) -> list[Truncation]:
    """The sides that end early: those that died, and one that lacks the last records of the other and nothing else.

    Args:
        target, golden: the calls of both sides in their order.
        rows: the items that were matched, and those that were not.
        levels: the levels of both sides.
        sides: the dumps, which say whether their runs died.
    """
    died = [dump.died for dump in sides]
    if not any(died) and not any(row.target is None or row.golden is None for row in rows):
        return []
    names = [
        [call.record.name for call in side if call.items and both_record(call.record.name, levels)]
        for side in (target, golden)
    ]
    matched = {row.record: row.golden_record or "" for row in rows if row.target is not None and row.golden is not None}
    matches = matched, {other: record for record, other in matched.items()}
    tails = [_after_the_last(found, side) for found, side in zip(names, matches)]
    found = []
    for side, mine, other in ((TARGET, 0, 1), (GOLDEN, 1, 0)):
        last = names[mine][-1] if names[mine] else ""
        more = len(tails[other])
        # Where a call in the middle is missing, numbers shift, and what has no match may stand at the end as well.
        matches_the_last = bool(more) and matches[mine].get(last) == names[other][-more - 1]
        unmatched = [sum(name not in matches[number] for name in names[number]) for number in (mine, other)]
        if died[mine] or (matches_the_last and unmatched == [0, more]):
            found.append(Truncation(side, last, more, died[mine], sides[mine].cut_at))
    return found


def _after_the_last(names: Sequence[str], matched: Mapping[str, str]) -> Sequence[str]:
    """The part that follows the last of `names` that is among `matched`; nothing where none is."""
    for index in range(len(names) - 1, -1, -1):
        if names[index] in matched:
            return names[index + 1 :]
    return ()
