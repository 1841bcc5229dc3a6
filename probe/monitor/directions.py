"""Directions of gradients in two runs: the step and the parameter at which one turns away, also where norms agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.common.numerics.sketch import LANES, cosine_interval
from probe.common.report.trends import GRADIENT_DIRECTION, REDUCED
from probe.monitor.alerts.rows import FamilyRows, Flags, Floats
from probe.monitor.monitor_run import MonitorRun

LEAST = 1e-3
"""Tangent of half an angle below which nothing is a turn. Measured over 20 steps of five models: in float32, another
order of sums reaches 1e-5."""
GROWTH = 10.0
"""A gradient turns if the tangent of half the angle is so many times what it, and the usual gradient, had before. The
sketches of both steps err by up to a quarter, so that a growth by 6 is certain."""
WHOLE = 0.9
"""Share of the gradients that turn in one step, from which on none of them is named as the first. A guess."""
FAR = 0.5
"""Tangent of half the angle that most gradients have if runs differ from the first step on: 53 degrees. Measured: in
bfloat16 it is 0.1 or less in the first step."""
_DIGITS = 7
"""Decimals of a cosine at most: those of float32, in which sketches are."""

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

    def as_json(self) -> dict[str, Any]:
        return {key: value if value == value else None for key, value in vars(self).items()}

    def text(self) -> str:
        """Where it is, and the cosine."""
        where = f"step {self.step}, rank {self.rank}"
        numbers = f"cosine {cosine_text(self.cosine)}"
        low, high = cosine_text(self.low), cosine_text(self.high)
        if low != high:
            numbers += f" ({low} to {high})"
        if self.before == self.before:
            numbers += f", {cosine_text(self.before)} or more before"
        if not self.name:
            return f"{where}: {self.turned} of {self.gradients} gradients, in the middle {numbers}"
        if abs(self.norm_ratio - 1) < LEAST:
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


def cosine_text(cosine: float) -> str:
    """A cosine with the digits that tell it from 1, two of them.

    Example:
        >>> cosine_text(0.99998734), cosine_text(-0.31), cosine_text(1.0)
        ('0.999987', '-0.31', '1.0000000')
    """
    far = max(1 - abs(cosine), 10.0**-_DIGITS)
    return f"{cosine:.{min(_DIGITS, max(2, 1 - math.floor(math.log10(far))))}f}"


def first_turn(run: MonitorRun, other: MonitorRun) -> Turn | None:
    """The first turn over all ranks; ``None`` if gradients point alike, or a run has no sketches."""
    found = [turn for rank in {*run.ranks} & {*other.ranks} if (turn := _turn_of_rank(rank, run, other)) is not None]
    return min(found, key=lambda turn: (turn.step, turn.rank), default=None)


def _turn_of_rank(rank: int, run: MonitorRun, other: MonitorRun) -> Turn | None:
    usual: dict[_Key, float] = {}
    for step in sorted({*run.steps} & {*other.steps}):
        mine, theirs = (_rows(each, rank, step, GRADIENT_DIRECTION) for each in (run, other))
        if mine is None or theirs is None or mine.sketches is None or theirs.sketches is None:
            continue
        mine, theirs = mine.aligned(theirs)
        assert mine.sketches is not None and theirs.sketches is not None
        angles = half_tangents(mine.sketches, theirs.sketches)
        turned = _turned(mine, angles, usual) if usual else _outliers(mine, angles)
        if turned.any():
            norms = [_norms(_rows(each, rank, step, REDUCED)) for each in (run, other)]
            return _turn(mine, theirs, turned, usual, (norms[0], norms[1]))
        for key, angle in zip(mine.row_keys(), angles.tolist()):
            if angle == angle:
                usual[key] = max(usual.get(key, 0.0), angle)
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


def _turned(rows: FamilyRows, angles: Floats, usual: Mapping[_Key, float]) -> Flags:
    middle = float(np.median(list(usual.values())))
    before = np.array([usual.get(key, math.inf) for key in rows.row_keys()])
    found: Flags = angles > np.maximum(LEAST, GROWTH * np.maximum(before, middle))
    return found


def _outliers(rows: FamilyRows, angles: Floats) -> Flags:
    """The gradients that point elsewhere in the first step, beside the others of it.

    A gradient that is rounding error, as that of a bias before a normalisation, points anywhere. It is small then: its
    error is not larger than those of others, relative to the usual size of an element.
    """
    known: Flags = ~np.isnan(angles)
    if not known.any():
        return known
    if float(np.median(angles[known])) >= FAR:
        return known & (angles >= FAR)
    errors = np.minimum(angles, 1.0) * _sizes(rows)
    limits = [max(LEAST, GROWTH * float(np.median(angles[known]))), GROWTH * float(np.median(errors[known]))]
    return known & (angles > limits[0]) & (errors > limits[1])


def _sizes(rows: FamilyRows) -> Floats:
    """The root mean square of the elements of each gradient."""
    elements = np.ones(len(rows.names)) if rows.numel is None else np.maximum(rows.numel, 1)
    found: Floats = np.linalg.norm(_sums(rows), axis=1) / np.sqrt(elements)
    return found


def _sums(rows: FamilyRows) -> Floats:
    assert rows.sketches is not None
    return rows.sketches


def _turn(
    rows: FamilyRows,
    other: FamilyRows,
    turned: Flags,
    usual: Mapping[_Key, float],
    norms: tuple[Mapping[_Key, float], Mapping[_Key, float]],
) -> Turn:
    at = np.flatnonzero(turned).tolist()
    is_whole = len(at) >= WHOLE * len(rows.names) and len(at) > 1
    elements = [None if rows.numel is None else int(np.nan_to_num(rows.numel[row], nan=LANES + 1)) for row in at]
    mine, theirs = _sums(rows), _sums(other)
    cosines = [cosine_interval(mine[row], theirs[row], number) for row, number in zip(at, elements)]
    shown = sorted(range(len(at)), key=lambda index: cosines[index].estimate)[len(at) // 2] if is_whole else 0
    key = rows.row_keys()[at[shown]]
    before = usual.get(key, math.nan)
    sizes = [each.get(key, math.nan) for each in norms]
    return Turn(
        rows.step, rows.rank, "" if is_whole else key[0], *cosines[shown], (1 - before**2) / (1 + before**2),
        sizes[0] / sizes[1] if sizes[1] else math.nan, len(at), len(rows.names),
    )  # fmt: skip


def turn_lines(turn: Turn) -> Iterator[str]:
    """The text of a turn: the line with the place, and the hint."""
    yield f"first turn: {turn.text()}"
    yield f"  {turn.hint()}"
