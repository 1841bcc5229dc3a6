"""Two runs beside each other: the first value that differs by more than rounding explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from probe.monitor.alerts.families import in_execution_order
from probe.monitor.alerts.rows import FamilyRows, Floats
from probe.monitor.alerts.tracks import floor_of, size_of
from probe.monitor.reading.run import MonitorRun

LEAST_DIFFERENCE = {"float32": 1e-4, "float64": 1e-6, "bfloat16": 3e-2, "float16": 5e-3}
"""Relative differences of norms that rounding explains in the first step. Guesses: a thousand times the unit roundoff
of float32, and some times that of the short types, whose norms average over elements."""
_UNKNOWN = 1e-3
_GROWTH = 10.0
"""A difference is a divergence if it is so many times as large as that of the row, and as the usual one of its family,
in the step before: rounding errors grow in a training, but not at once. A guess."""


@dataclass(frozen=True)
class Divergence:
    """The first value by which two runs part."""

    step: int
    rank: int
    name: str
    family: str
    op: str
    value: float
    other: float
    relative: float
    allowed: float
    rows: int
    """The rows that part in the same step."""

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def text(self) -> str:
        where = f"step {self.step}, rank {self.rank}: {self.name or '(root module)'} ({self.family})"
        return (
            f"{where}: {self.op} {self.value:.6g}, other run {self.other:.6g}: "
            f"relative difference {self.relative:.2g}, expected at most {self.allowed:.2g}"
        )


@dataclass(frozen=True)
class TwoRuns:
    """The comparison of two runs."""

    first: Divergence | None
    compared: int
    """Values that were compared."""
    steps: int
    """Steps that both runs have."""

    def as_json(self) -> dict[str, Any]:
        first = None if self.first is None else self.first.as_json()
        return {"first_difference": first, "compared_rows": self.compared, "common_steps": self.steps}


def compare_runs(run: MonitorRun, other: MonitorRun) -> TwoRuns:
    """Compare the rows that two runs have in common, in the order of execution, until they part."""
    ranks = sorted({*run.ranks} & {*other.ranks})
    steps = sorted({*run.steps} & {*other.steps})
    known: dict[tuple[int, str], Floats] = {}
    compared = 0
    for step in steps:
        parted: list[tuple[tuple[int, int, int], Divergence]] = []
        for rank in ranks:
            theirs = {each.family: each for each in other.rows(rank, step)}
            for order, rows in enumerate(in_execution_order(run.rows(rank, step))):
                counterpart = theirs.get(rows.family)
                if counterpart is None:
                    continue
                pairs = _pairs(rows, counterpart)
                compared += len(pairs[0])
                parted += [
                    ((order, row, rank), found)
                    for row, found in _differences(step, rank, rows, counterpart, pairs, known)
                ]
        if parted:
            first = min(parted, key=lambda each: each[0])[1]
            return TwoRuns(Divergence(**{**first.as_json(), "rows": len(parted)}), compared, len(steps))
    return TwoRuns(None, compared, len(steps))


def _pairs(rows: FamilyRows, other: FamilyRows) -> tuple[list[int], list[int]]:
    if rows.key == other.key:
        same = list(range(len(rows.names)))
        return same, same
    index = {key: row for row, key in enumerate(other.row_keys())}
    found = [(row, index[key]) for row, key in enumerate(rows.row_keys()) if key in index]
    return [row for row, _ in found], [row for _, row in found]


def _differences(
    step: int, rank: int, rows: FamilyRows, other: FamilyRows, pairs: tuple[list[int], list[int]],
    known: dict[tuple[int, str], Floats],
) -> list[tuple[int, Divergence]]:  # fmt: skip
    sizes, theirs = size_of(rows), size_of(other)
    if sizes is None or theirs is None or not pairs[0]:
        return []
    mine, others = sizes[pairs[0]], theirs[pairs[1]]
    floors = floor_of(rows, sizes)[pairs[0]]
    relative = relative_difference(mine, others, floors)
    op = "norm" if "norm" in rows.ops else "absmax"
    shown = [(op, float(one), float(two)) for one, two in zip(mine, others)]
    for row, found in _other_statistics(rows, other, pairs, floors):
        if found.relative > relative[row]:
            relative[row], shown[row] = found.relative, (found.op, found.value, found.other)
    if rows.judged is not None:
        relative[~rows.judged[pairs[0]]] = 0.0
    least = _UNKNOWN if rows.numel is None else LEAST_DIFFERENCE["float32"]
    key = rank, rows.family
    before = known.get(key)
    usual = before if before is not None and len(before) == len(relative) else np.zeros(len(relative))
    allowed = np.maximum(least, _GROWTH * np.maximum(usual, np.median(usual) if len(usual) else 0.0))
    known[key] = np.maximum(usual, np.where(np.isfinite(relative), relative, 0.0))
    return [
        (
            pairs[0][row],
            Divergence(
                step, rank, rows.names[pairs[0][row]], rows.family, *shown[row], float(relative[row]),
                float(allowed[row]), 1,
            ),
        )
        for row in np.flatnonzero(relative > allowed).tolist()
    ]  # fmt: skip


class _Statistic(NamedTuple):
    op: str
    value: float
    other: float
    relative: float


def _other_statistics(
    rows: FamilyRows, other: FamilyRows, pairs: tuple[list[int], list[int]], floors: Floats
) -> Iterator[tuple[int, _Statistic]]:
    """Differences of what has a sign, which a norm has not: of extremes by the largest value, of means by the rms."""
    given = {op: (rows.column(op), other.column(op)) for op in ("max", "min", "mean", "norm")}
    columns = {
        op: (mine[pairs[0]], theirs[pairs[1]])
        for op, (mine, theirs) in given.items()
        if mine is not None and theirs is not None
    }
    scales: list[tuple[str, Floats]] = []
    if "max" in columns and "min" in columns:
        extremes = [np.abs(each) for op in ("max", "min") for each in columns[op]]
        scales += [(op, np.max([*extremes, floors], axis=0)) for op in ("max", "min")]
    if "mean" in columns and "norm" in columns and rows.numel is not None:
        size = np.max([*map(np.abs, columns["norm"]), floors], axis=0)
        scales.append(("mean", size / np.sqrt(np.maximum(rows.numel[pairs[0]], 1))))
    for op, scale in scales:
        mine, theirs = columns[op]
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.abs(mine - theirs) / scale
        for row in np.flatnonzero(np.isfinite(relative) & (relative > 0)).tolist():
            yield row, _Statistic(op, float(mine[row]), float(theirs[row]), float(relative[row]))


def relative_difference(mine: Floats, others: Floats, floor: Floats | float) -> Floats:
    """Differences relative to the larger value; infinite where one of both is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.abs(mine - others) / np.maximum(np.maximum(np.abs(mine), np.abs(others)), floor)
    both = ~np.isfinite(mine) & ~np.isfinite(others)
    found[~np.isfinite(found)] = np.inf
    found[both] = 0.0
    return found
