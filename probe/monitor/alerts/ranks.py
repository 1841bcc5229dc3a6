"""Rules over the rows of several ranks: replicas that part, and a rank whose sizes are none of the others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from probe.monitor.alerts.families import Kind, execution_order, kind_of
from probe.monitor.alerts.rows import FamilyRows, Finding, Flags, Floats, finding
from probe.monitor.alerts.tracks import Track, floor_of, log_size, size_of

REPLICATED = ("grad_reduced", "param_origin", "param_updated")
"""Families that are equal on all ranks that hold the same weights."""
TOLERANCE = 1e-6
"""Relative. Statistics of equal tensors are equal; a file may have rounded them."""
REPLICATED_SHARE = 0.5
"""Share of rows that are equal on most ranks, at which a family counts as replicated. A guess."""
OUTLIER_DECADES, OUTLIER_RANKS, MIN_HISTORY = 1.0, 3, 5


class RankRules:
    """Rules over all ranks, for those who read the files of all of them."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}
        self._were_replicas: set[str] = set()

    def judge(self, step: int, rows_of: Mapping[int, Sequence[FamilyRows]]) -> list[Finding]:
        """Findings that begin in this step.

        Args:
            step: The number of the step.
            rows_of: The rows of each rank.
        """
        ranks = sorted(rows_of)
        if len(ranks) < 2:
            return []
        by_family: dict[str, dict[int, FamilyRows]] = {}
        for rank in ranks:
            for rows in rows_of[rank]:
                by_family.setdefault(rows.family, {})[rank] = rows
        found: list[Finding] = []
        for family, of_rank in by_family.items():
            first = next(iter(of_rank.values()))
            # Ranks of another stage have other rows.
            alike = {rank: each for rank, each in of_rank.items() if each.key == first.key and each.ops == first.ops}
            if len(alike) < 2:
                continue
            track = self._tracks.setdefault(family, Track())
            track.align(first)
            if family in REPLICATED:
                found += self._parted(step, family, alike, track)
            found += _outliers(step, alike, track)
        return sorted(found, key=execution_order)

    def _parted(self, step: int, family: str, of_rank: Mapping[int, FamilyRows], track: Track) -> list[Finding]:
        """Rows that are not equal on all ranks although the weights are replicated."""
        ranks = sorted(of_rank)
        first = of_rank[ranks[0]]
        values = np.stack([of_rank[rank].values for rank in ranks])
        with np.errstate(invalid="ignore"):
            middle = np.median(values, axis=0) if len(ranks) > 2 else values[0]
            scale = np.maximum(np.abs(middle), np.abs(values))
            differs = ~((np.abs(values - middle) <= TOLERANCE * scale) | (np.isnan(values) & np.isnan(middle)))
        differs &= ~(values == middle)
        on_rank: Flags = np.asarray(differs.any(axis=2))
        holds: Flags = np.asarray(on_rank.any(axis=0))
        equal_share = 1 - float(on_rank.mean(axis=0).mean()) if len(ranks) > 2 else 1 - float(holds.mean())
        if equal_share >= REPLICATED_SHARE:
            self._were_replicas.add(family)
        elif family not in self._were_replicas:
            # Shards of a split model, or nothing that can be told from them.
            return []
        found = []
        for row in track.begins("parted", holds).tolist():
            others = np.flatnonzero(on_rank[:, row])
            index = int(others[0])
            op = first.ops[int(np.argmax(differs[index, row]))]
            column = first.ops.index(op)
            value, expected = float(values[index, row, column]), float(middle[row, column])
            named = f"rank {ranks[index]}" if len(ranks) > 2 else f"ranks {ranks[0]} and {ranks[1]}"
            why = f"replicas part: {op} of {named} is {value:.9g}, on the other ranks {expected:.9g}"
            if len(ranks) == 2:
                why = f"replicas part: {op} is {expected:.9g} on rank {ranks[0]} and {value:.9g} on rank {ranks[1]}"
            text = f"{op} {expected:.9g}, as on the other ranks"
            found.append(
                finding(of_rank[ranks[index]], row, op, step, ranks[index], "rank_divergence", value, text, why)
            )
        return found


def _outliers(step: int, of_rank: Mapping[int, FamilyRows], track: Track) -> list[Finding]:
    """Rows of a rank that are ten times as large, or as small, as ever relative to the median over the ranks."""
    ranks = sorted(of_rank)
    first = of_rank[ranks[0]]
    if len(ranks) < OUTLIER_RANKS or kind_of(first.family) is Kind.OTHER:
        return []
    sizes = [size_of(of_rank[rank]) for rank in ranks]
    if any(each is None for each in sizes):
        return []
    logs: Floats = np.stack([log_size(each, floor_of(first, each)) for each in sizes if each is not None])
    finite = np.where(np.isfinite(logs), logs, 0.0)
    off = np.abs(logs - np.median(finite, axis=0))
    off[~np.isfinite(off)] = 0.0
    # The usual distance of each rank from the median.
    usual = track.array("usual", lambda rows: np.zeros((rows, len(ranks))))
    if usual.shape[1] != len(ranks):
        return []
    at, count = track.at, track.counter("compared")
    holds: Flags = (usual[at] + OUTLIER_DECADES < off.T) & (count[at] >= MIN_HISTORY)[:, None]
    usual[at] = np.maximum(usual[at], np.where(holds, usual[at], off.T))
    count[at] += 1
    found = []
    for row in track.begins("outlier", np.asarray(holds.any(axis=1))).tolist():
        index = int(np.argmax(np.where(holds[row], off[:, row], -1)))
        size = 10 ** float(logs[index, row])
        middle = 10 ** float(np.median(finite[:, row]))
        why = f"norm {size:.3g} of rank {ranks[index]} is far from {middle:.3g}, the median over {len(ranks)} ranks"
        text = f"within {10 ** float(usual[track.position(row), index] + OUTLIER_DECADES):.3g} times of {middle:.3g}"
        found.append(finding(of_rank[ranks[index]], row, "norm", step, ranks[index], "rank_outlier", size, text, why))
    return found
