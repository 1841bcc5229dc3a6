"""Truncation of a side, which ends before the other: its run died, or was stopped earlier."""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.align.counterparts import CallPair
from probe.common.align.one_sided import END
from probe.common.dump.reading.dump import Dump
from probe.compare.result import GOLDEN, TARGET, Truncation


def truncations(pairs: Sequence[CallPair], sides: tuple[Dump, Dump]) -> list[Truncation]:
    """The sides that end early: those that died, and one that lacks the last records of the other and nothing else.

    Args:
        pairs: the calls side by side.
        sides: the dumps, which say whether their runs died.
    """
    found = []
    for number, (side, dump) in enumerate(zip((TARGET, GOLDEN), sides)):
        lacks = [pair for pair in pairs if (pair.record, pair.golden_record)[number] is None and pair.rows]
        more = sum(pair.how == END for pair in lacks)
        last = dump.records[-1].name if dump.records else ""
        if dump.died or more:
            found.append(Truncation(side, last, more, dump.died, dump.cut_at))
    return found
