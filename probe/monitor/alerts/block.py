"""All families of a step that have the same statistics, as one table: a rule costs a few calls of numpy a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.monitor.alerts.families import Kind, kind_of
from probe.monitor.alerts.rows import FamilyRows, Finding, Flags, Floats
from probe.monitor.alerts.tracks import FLOOR_SHARE, WEIGHT_SHARE, Track, floor_of, size_of

_FLOOR_STEPS = 16
"""Steps after which the floors of rows are found again; the typical size of a family changes slowly."""


@dataclass(frozen=True)
class Block:
    """Families one below the other."""

    families: Sequence[FamilyRows]
    starts: Sequence[int]
    """The first row of each family, and the number of rows."""
    values: Floats
    judged: Flags
    sizes: Floats | None
    """The size of each row; ``None`` where no statistic has it."""

    @staticmethod
    def of(families: Sequence[FamilyRows]) -> Block:
        """The block of families with equal statistics."""
        starts = [0]
        for each in families:
            starts.append(starts[-1] + len(each.names))
        judged = np.concatenate([_judged(each) for each in families])
        values = np.concatenate([each.values for each in families])
        joined = FamilyRows("", (), families[0].ops, values)
        return Block(families, starts, values, judged, size_of(joined))

    @property
    def ops(self) -> tuple[str, ...]:
        return self.families[0].ops

    @property
    def step(self) -> int:
        return self.families[0].step

    @property
    def key(self) -> tuple[object, ...]:
        """Two steps with equal keys have the same rows."""
        return tuple([(each.family, each.key) for each in self.families])

    def column(self, op: str) -> Floats | None:
        """The values of one statistic, or ``None``."""
        return self.values[:, self.ops.index(op)] if op in self.ops else None

    def row_keys(self) -> list[tuple[str, int, int]]:
        """Identity of a row."""
        found = []
        for each in self.families:
            micro, stages = each.micro, each.stages
            for row, name in enumerate(each.names):
                found.append((f"{each.family}\n{name}", micro[row] if micro else 0, stages[row] if stages else 0))
        return found

    def of_kind(self, kind: Kind) -> Flags:
        """True for the rows of families of a kind."""
        return np.concatenate([np.full(len(each.names), kind_of(each.family) is kind) for each in self.families])

    def names(self) -> list[tuple[str, str]]:
        """Family and name of each row."""
        return [(each.family, name) for each in self.families for name in each.names]

    def finding(
        self, row: int, op: str, rule: str, value: float, expected: str, why: str, step: int | None = None
    ) -> Finding:
        """A finding about one row of the block, see `FamilyRows.finding`."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.families[index].finding(row - self.starts[index], op, rule, value, expected, why, step)

    def floors(self, track: Track) -> Floats:
        """The size below which each row is noise, which is kept for some steps."""

        def made() -> Floats:
            found = []
            for each in self.families:
                sizes = size_of(each)
                share = WEIGHT_SHARE if kind_of(each.family) is Kind.WEIGHT else FLOOR_SHARE
                found.append(np.zeros(len(each.names)) if sizes is None else floor_of(each, sizes, share))
            return np.concatenate(found)

        found: Floats = track.kept("floors", _FLOOR_STEPS, made)
        return found


def _judged(rows: FamilyRows) -> Flags:
    """True for rows of floating point numbers that are there and not empty."""
    found: Flags = np.ones(len(rows.names), dtype=np.bool_) if rows.judged is None else rows.judged
    return found if rows.numel is None else found & (rows.numel != 0)


def blocks_of(families: Sequence[FamilyRows]) -> list[Block]:
    """The blocks of a step: one, unless families have other statistics than the rest."""
    groups: dict[tuple[str, ...], list[FamilyRows]] = {}
    for each in families:
        if each.names:
            groups.setdefault(each.ops, []).append(each)
    return [Block.of(group) for group in groups.values()]
