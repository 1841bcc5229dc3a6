"""Where a side ends before the other: its run died, or was stopped earlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe.common.dump.levels import Levels, both_record
from probe.common.match.calls import Call
from probe.common.match.row import Row

TARGET, GOLDEN = "target", "golden run"


@dataclass(frozen=True)
class Ending:
    """One side that ends early."""

    side: str
    """``target`` or ``golden run``."""
    record: str
    """Its last record; empty where it has none."""
    more: int
    """How many records the other side has after the last one that met."""
    died: bool
    """Whether it is the journal of a run that died."""

    def __str__(self) -> str:
        place = f"ends at {self.record}" if self.record else "has no record"
        what = f"the {self.side} {'is the journal of a run that died; it ' if self.died else ''}{place}"
        other = GOLDEN if self.side == TARGET else TARGET
        return f"{what}; the {other} has {self.more} more record{'' if self.more == 1 else 's'}" if self.more else what


def endings(
    target: Sequence[Call], golden: Sequence[Call], rows: Sequence[Row], levels: Levels, died: tuple[bool, bool]
) -> list[Ending]:
    """The sides that end early: those that died, and one that lacks the last records of the other and nothing else.

    Args:
        target, golden: the calls of both sides in their order.
        rows: what met.
        levels: what both sides record.
        died: whether they are journals of runs that died.
    """
    if not any(died) and not any(row.target is None or row.golden is None for row in rows):
        return []
    names = [
        [call.record.name for call in side if call.items and both_record(call.record.name, levels)]
        for side in (target, golden)
    ]
    met = {row.record: row.golden_record or "" for row in rows if row.target is not None and row.golden is not None}
    there = met, {other: record for record, other in met.items()}
    tails = [_after_the_last(found, side) for found, side in zip(names, there)]
    found = []
    for side, mine, other in ((TARGET, 0, 1), (GOLDEN, 1, 0)):
        last = names[mine][-1] if names[mine] else ""
        more = len(tails[other])
        # Where a call in the middle is missing, numbers shift, and what has no match may stand at the end as well.
        meets_the_last = bool(more) and there[mine].get(last) == names[other][-more - 1]
        alone = [sum(name not in there[number] for name in names[number]) for number in (mine, other)]
        if died[mine] or (meets_the_last and alone == [0, more]):
            found.append(Ending(side, last, more, died[mine]))
    return found


def _after_the_last(names: Sequence[str], met: Mapping[str, str]) -> Sequence[str]:
    """What follows the last of `names` that is among `met`; nothing where none is."""
    for place in range(len(names) - 1, -1, -1):
        if names[place] in met:
            return names[place + 1 :]
    return ()
