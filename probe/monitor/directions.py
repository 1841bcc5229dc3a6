"""Directions of gradients in two runs: the step and the parameter at which one turns away, also where norms agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from probe.common.errors import FileCheckException
from probe.common.numerics.sketch import LANES, Cosine, cosine_interval, cosine_text
from probe.common.report.trends import GRADIENT_DIRECTION, REDUCED
from probe.monitor.alerts.rows import FamilyRows, Flags, Floats
from probe.monitor.monitor_run import MonitorRun, read_monitor

LEAST = 0.05
"""Tangent of half an angle below which nothing is a turn: 6 degrees. Measured in float32: another order of sums reaches
1e-5, until an element crosses a ReLU. With five convolutions all gradients then turn by 0.001, and soon by 0.01."""
NORMS_AGREE = 1e-3
"""Relative difference of norms that are said to agree. A guess."""
GROWTH = 10.0
"""A gradient turns if the tangent of half the angle is so many times what it, and the usual gradient, had before. The
sketches of both steps err by up to a quarter, so that a growth by 6 is certain."""
LEAST_ERROR = 1e-3
"""The error of a direction, relative to the size of a usual element, below which a gradient that turns is none: a bias
before a normalisation has a gradient of rounding error alone, which points anywhere, and a single number near 0 changes
its sign. Measured in float32: 1e-5 for the biases of five convolutions over 4,096 positions."""
GAP = 3.0
"""Gradients turn if they are beyond their limits by so many times more than all others of the step. Measured: by
rounding, GPT-2 with a learning rate of 0.005 parts from itself within 20 steps; the largest gap is 1.7 then."""
_MOST_TIMES = 1e12
"""Stands for an opposite direction, whose angle is infinitely many times any other."""
WHOLE = 0.9
"""Share of the gradients that turn in one step, from which on none of them is named as the first. A guess."""
FAR = 0.5
"""Tangent of half the angle that most gradients have if runs differ from the first step on: 53 degrees. Measured: in
bfloat16 it is 0.1 or less in the first step."""

_Key = tuple[str, int, int]
"""Name, micro step and stage of a row."""


# --- two runs


@dataclass(frozen=True)
class Turn:
    """The first step at which gradients of two runs point elsewhere than before."""

    step: int
    rank: int
    name: str
    """The parameter whose gradient turns first in the backward pass; empty if nearly all turn."""
    cosine: float
    low: float
    """The lower end of an interval that holds the cosine in 99 of 100 cases, and the upper end of it."""
    high: float
    before: float
    """The smallest cosine of the parameter in the steps before; NaN in the first step."""
    norm_ratio: float
    """The norm of the gradient divided by that in the other run; NaN if norms were not recorded."""
    turned: int
    """The gradients that turn in this step, of so many:"""
    gradients: int
    """Those of rounding error alone are not counted."""

    def as_json(self) -> dict[str, Any]:
        known = {key: value if value == value else None for key, value in vars(self).items()}
        return {**known, "family": GRADIENT_DIRECTION}

    def text(self) -> str:
        """The step, the rank, the parameter, the cosine and the norms."""
        where = f"step {self.step}, rank {self.rank}"
        numbers = f"cosine {Cosine(self.cosine, self.low, self.high).in_words()}"
        if self.before == self.before:
            before = cosine_text(self.before)
            numbers += f", before {before}" if before == "1" else f", before at least {before}"
        if not self.name:
            return f"{where}: {self.turned} of {self.gradients} gradients, in the middle {numbers}"
        if abs(self.norm_ratio - 1) < NORMS_AGREE:
            numbers += "; the norms agree"
        elif self.norm_ratio == self.norm_ratio:
            numbers += f"; its norm is {self.norm_ratio:.4g} times that of the other run"
        return f"{where}: gradient of {self.name}: {numbers}"

    def hint(self) -> str:
        """The sentence on the other gradients of the step."""
        if not self.name:
            return "nearly all gradients turn in one step: look at the batch, the loss, and the forward pass"
        if self.turned == 1:
            return f"the other {self.gradients - 1} gradients of the step point as before"
        return f"the first of {self.turned} gradients, of {self.gradients}, that turn in the backward pass of this step"


def first_turn(run: MonitorRun, other: MonitorRun) -> Turn | None:
    """The first turn over all ranks; ``None`` if gradients point alike, or a run has no sketches."""
    found = [turn for rank in {*run.ranks} & {*other.ranks} if (turn := _turn_of_rank(rank, run, other)) is not None]
    return min(found, key=lambda turn: (turn.step, turn.rank), default=None)


def turn_of_probes(target: str, golden: str) -> Turn | None:
    """The first turn of two runs of the gradient probe, see `first_turn`.

    Args:
        target, golden: The ``dump_path`` of each.
    """
    try:
        runs = [read_monitor(path) for path in (target, golden)]
    except FileCheckException:
        return None  # collected without sketches
    return first_turn(*runs)


def _turn_of_rank(rank: int, run: MonitorRun, other: MonitorRun) -> Turn | None:
    usual = _Usual()
    for step in sorted({*run.steps} & {*other.steps}):
        mine, theirs = (_rows(each, rank, step, GRADIENT_DIRECTION) for each in (run, other))
        if mine is None or theirs is None or mine.sketches is None or theirs.sketches is None:
            continue
        mine, theirs = mine.aligned(theirs)
        now = _angles(mine, theirs)
        turned = usual.turned(mine, now)
        if turned.any():
            norms = [_norms(_rows(each, rank, step, REDUCED)) for each in (run, other)]
            return _turn(mine, theirs, turned, int((now.sizes >= LEAST_ERROR).sum()), usual, (norms[0], norms[1]))
        usual.add(mine, now)
    return None


def _rows(run: MonitorRun, rank: int, step: int, family: str) -> FamilyRows | None:
    return next((each for each in run.rows(rank, step) if each.family == family), None)


def _norms(rows: FamilyRows | None) -> dict[_Key, float]:
    """The norms of gradients as they were recorded: those of sketches err by a tenth."""
    norms = None if rows is None else rows.column("norm")
    return {} if rows is None or norms is None else dict(zip(rows.row_keys(), norms.tolist()))


def half_tangents(one: Floats, other: Floats) -> Floats:
    """The tangent of half the angle of each two rows: 0 if they point alike, 1 at a right angle, then up to infinity.

    In contrast to the cosine it has all digits near 0, and a growth by ten is possible from everywhere. NaN where a row
    is zero.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        mine, theirs = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (one, other))
        found: Floats = np.linalg.norm(mine - theirs, axis=1) / np.linalg.norm(mine + theirs, axis=1)
    return found


class _Angles(NamedTuple):
    """The angles of the gradients of one step."""

    half_tangents: Floats
    sizes: Floats
    """The root mean square of the elements of each gradient, relative to that of the usual gradient."""

    @property
    def errors(self) -> Floats:
        """The difference of both directions, in units of a usual element."""
        return np.minimum(self.half_tangents, 1.0) * self.sizes


def _angles(rows: FamilyRows, other: FamilyRows) -> _Angles:
    found = half_tangents(_sums(rows), _sums(other))
    elements = np.ones(len(rows.names)) if rows.numel is None else np.maximum(rows.numel, 1)
    sizes = np.linalg.norm(_sums(rows), axis=1) / np.sqrt(elements)
    known = sizes[sizes > 0]
    usual = float(np.median(known)) if len(known) else 1.0
    return _Angles(found, sizes / usual)


class _Usual:
    """The largest angle and error of each gradient so far."""

    def __init__(self) -> None:
        self._of: dict[_Key, tuple[float, float]] = {}

    def cosine(self, key: _Key) -> float:
        """The smallest cosine so far; NaN if there is none."""
        angle = self._of.get(key, (math.nan, 0.0))[0]
        return (1 - angle**2) / (1 + angle**2) if angle < math.inf else -1.0 if angle == math.inf else math.nan

    def add(self, rows: FamilyRows, now: _Angles) -> None:
        for key, angle, error in zip(rows.row_keys(), now.half_tangents.tolist(), now.errors.tolist()):
            if angle == angle:
                before = self._of.get(key, (0.0, 0.0))
                self._of[key] = max(before[0], angle), max(before[1], error)

    def turned(self, rows: FamilyRows, now: _Angles) -> Flags:
        """The gradients that point elsewhere than before, or, in the first step, than the others of it."""
        known: Flags = ~np.isnan(now.half_tangents)
        if not known.any():
            return known
        if self._of:
            before = np.array([self._of.get(key, (math.inf, math.inf)) for key in rows.row_keys()])
            middle = np.median(list(self._of.values()), axis=0)
        else:
            before = np.zeros((len(known), 2))
            middle = np.array([np.median(each[known]) for each in (now.half_tangents, now.errors)])
            if middle[0] >= FAR:
                return known & (now.half_tangents >= FAR)
        limits = np.maximum([LEAST, LEAST_ERROR], GROWTH * np.maximum(before, middle))
        times = (np.stack((now.half_tangents, now.errors), axis=1) / limits).min(axis=1)
        return _apart(np.where(known & (now.sizes >= LEAST_ERROR), np.minimum(times, _MOST_TIMES), np.nan))


def _apart(times: Floats) -> Flags:
    """The gradients beyond their limits that a gap parts from all others; none where there is no gap.

    Two runs that part by rounding alone have, in the step in which that becomes visible, angles of all sizes.

    Args:
        times: The angle of each gradient, in units of its limit; NaN of one that is not judged.
    """
    order = np.argsort(-times)
    sizes = times[order][: int((~np.isnan(times)).sum())]
    above = int((sizes > 1).sum())
    found: Flags = np.zeros(len(times), dtype=np.bool_)
    if above and above >= WHOLE * len(sizes):
        found[order[:above]] = float(np.median(sizes[:above])) >= GAP
    elif above:
        gaps = sizes[:above] / np.maximum(sizes[1 : above + 1], 1 / _MOST_TIMES)
        if gaps.max() >= GAP:
            found[order[: int(gaps.argmax()) + 1]] = True
    return found


def _sums(rows: FamilyRows) -> Floats:
    assert rows.sketches is not None
    return rows.sketches


def _turn(
    rows: FamilyRows,
    other: FamilyRows,
    turned: Flags,
    judged: int,
    usual: _Usual,
    norms: tuple[Mapping[_Key, float], Mapping[_Key, float]],
) -> Turn:
    at = np.flatnonzero(turned).tolist()
    is_whole = len(at) >= WHOLE * judged and len(at) > 1
    elements = [None if rows.numel is None else int(np.nan_to_num(rows.numel[row], nan=LANES + 1)) for row in at]
    mine, theirs = _sums(rows), _sums(other)
    cosines = [cosine_interval(mine[row], theirs[row], number) for row, number in zip(at, elements)]
    shown = sorted(range(len(at)), key=lambda index: cosines[index].estimate)[len(at) // 2] if is_whole else 0
    key = rows.row_keys()[at[shown]]
    sizes = [each.get(key, math.nan) for each in norms]
    return Turn(
        rows.step, rows.rank, "" if is_whole else key[0], *cosines[shown], usual.cosine(key),
        sizes[0] / sizes[1] if sizes[1] else math.nan, len(at), judged,
    )  # fmt: skip


def turn_lines(turn: Turn) -> Iterator[str]:
    """The text of a turn: the line with the place, and the hint."""
    yield f"first turn: {turn.text()}"
    yield f"  {turn.hint()}"
