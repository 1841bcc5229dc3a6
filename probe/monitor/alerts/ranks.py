"""Rules over the rows of several ranks: replicas that part, and gradients that are not reduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np

from probe.common.numerics.sketch import cosine_interval
from probe.common.report.trends import BEFORE, COSINE, GRADIENT_DIRECTION, REDUCED, START
from probe.monitor.alerts.rows import FamilyRows, Finding, Flags, Floats, execution_order
from probe.monitor.alerts.tracks import Track

REPLICATED = (START, BEFORE, REDUCED, "param_updated")
"""Families that are equal on all ranks that hold the same weights."""
TOLERANCE = 1e-6
"""Relative. Statistics of equal tensors are equal; a file may have rounded them."""
MOST = 0.5
"""Share of rows. If more gradients differ, the reduction as a whole is missing, and not that of a module. A guess."""
PARTED, NOT_REDUCED = "rank_divergence", "not_reduced"


class _Compared(NamedTuple):
    """The rows of one family on all ranks that have the same ones."""

    ranks: Sequence[int]
    values: Floats
    """Shape (ranks, rows, ops)."""
    middle: Floats
    differs: Flags
    on_rank: Flags
    """Shape (ranks, rows)."""

    @property
    def rows(self) -> Flags:
        found: Flags = np.asarray(self.on_rank.any(axis=0))
        return found

    @property
    def share(self) -> float:
        """Share of the rows of a rank that differ."""
        by_rank = self.on_rank.mean(axis=1) if len(self.ranks) > 2 else self.rows.mean(keepdims=True)
        return float(by_rank.max())


class RankRules:
    """Rules over all ranks, for those who read the files of all of them."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}
        self._are_replicas: Optional[bool] = None  # noqa: UP045
        """True if the ranks began with equal weights, or had equal gradients; ``None`` while nothing tells."""
        self._not_reduced = self._has_parted = False
        self._differ_since: Optional[int] = None  # noqa: UP045
        """The first step whose gradients differed while nothing told that they should not."""

    def judge(self, rows: Sequence[FamilyRows]) -> list[Finding]:
        """Findings that begin in this step, of whose ranks these are the rows."""
        by_family: dict[str, dict[int, FamilyRows]] = {}
        for each in sorted(rows, key=lambda each: each.rank):
            by_family.setdefault(each.family, {})[each.rank] = each
        found: list[Finding] = []
        for family in REPLICATED:
            of_rank = by_family.get(family)
            if of_rank:
                found += self._family(family, of_rank)
        if self._are_replicas and not (found or self._has_parted or self._not_reduced):
            found += self._directions(by_family.get(GRADIENT_DIRECTION, {}))
        return sorted(found, key=execution_order)

    def _family(self, family: str, of_rank: Mapping[int, FamilyRows]) -> list[Finding]:
        first = next(iter(of_rank.values()))
        # Ranks of another stage have other rows.
        alike = {rank: each for rank, each in of_rank.items() if each.key == first.key and each.ops == first.ops}
        if len(alike) < 2 or not first.names:
            return []
        compared = _compare(alike)
        if self._are_replicas is None:
            if family != REDUCED:
                self._are_replicas = compared.share == 0
            elif compared.share <= MOST:
                self._are_replicas = True
            elif self._differ_since is None:
                self._differ_since = first.step
        if not self._are_replicas or family == START:
            # Shards of a split model, or nothing that can be told from them.
            return []
        if self._not_reduced:
            # Weights part by what was not reduced, and a step that is reduced does not join them again.
            return []
        if family == REDUCED and compared.share > MOST and not self._has_parted:
            return self._whole(alike, compared)
        track = self._tracks.setdefault(family, Track())
        track.align(first)
        begun = track.begins("parted", compared.rows).tolist()
        self._has_parted |= bool(begun)
        return [_parted(alike, compared, row) for row in begun]

    def _directions(self, of_rank: Mapping[int, FamilyRows]) -> list[Finding]:
        """Gradients whose statistics are equal on all ranks, and whose elements are not."""
        first, *others = of_rank.values() if len(of_rank) > 1 else (None,)
        if first is None or first.sketches is None:
            return []
        found = []
        for other in others:
            mine, its = first.aligned(other)
            assert mine.sketches is not None and its.sketches is not None
            norms = np.linalg.norm(mine.sketches, axis=1)
            differs: Flags = np.linalg.norm(its.sketches - mine.sketches, axis=1) > TOLERANCE * norms
            for row in np.flatnonzero(differs).tolist():
                value = cosine_interval(mine.sketches[row], its.sketches[row]).estimate
                why = f"gradients of replicas differ after the reduction: cosine {value:.6g} with rank {first.rank}"
                found.append(its.finding(row, COSINE, PARTED, value, f"the gradient of rank {first.rank}", why))
        self._has_parted |= bool(found)
        return found

    def _whole(self, of_rank: Mapping[int, FamilyRows], compared: _Compared) -> list[Finding]:
        """Most gradients differ: no reduction has been made in this step."""
        self._not_reduced = True
        row = int(np.argmax(compared.rows))
        made = _parted(of_rank, compared, row)
        step = made.step if self._differ_since is None else self._differ_since
        count, number = int(compared.rows.sum()), len(compared.rows)
        why = (
            f"gradients of replicas differ after the reduction from step {step} on: they are not reduced "
            f"({count} of {number} parameters, on ranks {', '.join(map(str, compared.ranks[:8]))})"
        )
        changes = {"step": step, "rule": NOT_REDUCED, "why": why, "expected": "equal on all ranks"}
        return [Finding(**{**vars(made), **changes, "name": "all parameters"})]


def _compare(of_rank: Mapping[int, FamilyRows]) -> _Compared:
    ranks = sorted(of_rank)
    values = np.stack([of_rank[rank].values for rank in ranks])
    with np.errstate(invalid="ignore"):
        middle = np.median(values, axis=0) if len(ranks) > 2 else values[0]
        scale = np.maximum(np.abs(middle), np.abs(values))
        differs = ~((np.abs(values - middle) <= TOLERANCE * scale) | (np.isnan(values) & np.isnan(middle)))
    differs &= ~(values == middle)
    return _Compared(ranks, values, middle, differs, np.asarray(differs.any(axis=2)))


def _parted(of_rank: Mapping[int, FamilyRows], compared: _Compared, row: int) -> Finding:
    """A row that is not equal on all ranks although the weights are replicated."""
    ranks, first = compared.ranks, of_rank[compared.ranks[0]]
    index = int(np.flatnonzero(compared.on_rank[:, row])[0])
    column = int(np.argmax(compared.differs[index, row]))
    op, value, expected = first.ops[column], float(compared.values[index, row, column]), compared.middle[row, column]
    of_what = "gradients of replicas differ after the reduction" if first.family == REDUCED else "replicas part"
    why = f"{of_what}: {op} of rank {ranks[index]} is {value:.9g}, on the other ranks {expected:.9g}"
    if len(ranks) == 2:
        why = f"{of_what}: {op} is {expected:.9g} on rank {ranks[0]} and {value:.9g} on rank {ranks[1]}"
    text = f"{op} {expected:.9g}, as on the other ranks"
    return of_rank[ranks[index]].finding(row, op, PARTED, value, text, why)
