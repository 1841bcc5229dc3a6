"""Two runs beside each other: the first value that differs by more than rounding explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional

import numpy as np

from probe.common.report.trends import GRADIENT_DIRECTION
from probe.monitor.alerts.rows import FamilyRows, Floats, in_execution_order, module_of, shown_name
from probe.monitor.alerts.tracks import floor_of, size_of
from probe.monitor.directions import Turn, first_turn, turn_lines
from probe.monitor.judging import JudgedRun, coverage_lines
from probe.monitor.monitor_run import MonitorRun

_LEAST, _UNKNOWN = 1e-4, 1e-3
"""Relative differences of norms that rounding explains in the first step, and of tensors of unknown size. Guesses: a
thousand times the unit roundoff of float32, and ten times that."""
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
        where = f"step {self.step}, rank {self.rank}: {shown_name(self.name)} ({self.family})"
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
    turn: Optional[Turn] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The first gradient that turns away, if both runs have sketches of gradients."""

    @property
    def is_found(self) -> bool:
        """True if the runs part."""
        return self.first is not None or self.turn is not None

    @property
    def earliest(self) -> Divergence | Turn | None:
        """The turn of a gradient, or the first difference if that is in an earlier step."""
        if self.turn is None or not self.turn.name or (self.first is not None and self.first.step < self.turn.step):
            return self.first
        return self.turn

    def as_json(self) -> dict[str, Any]:
        first = None if self.first is None else self.first.as_json()
        turn = None if self.turn is None else self.turn.as_json()
        return {
            "first_difference": first, "compared_rows": self.compared, "common_steps": self.steps, "first_turn": turn,
        }  # fmt: skip


def compare_runs(run: MonitorRun, other: MonitorRun) -> TwoRuns:
    """Compare the rows that two runs have in common, in the order of execution, until they part."""
    ranks = sorted({*run.ranks} & {*other.ranks})
    steps = sorted({*run.steps} & {*other.steps})
    usual: dict[tuple[int, str], Floats] = {}
    compared = 0
    for step in steps:
        parted: list[tuple[tuple[int, int, int], Divergence]] = []
        for rank in ranks:
            theirs = {each.family: each for each in other.rows(rank, step)}
            for order, rows in enumerate(in_execution_order(run.rows(rank, step))):
                if rows.family in theirs:
                    mine, its = rows.aligned(theirs[rows.family])
                    compared += len(mine.names)
                    parted += [((order, row, rank), found) for row, found in _differences(mine, its, usual)]
        if parted:
            first = min(parted, key=lambda each: each[0])[1]
            return TwoRuns(replace(first, rows=len(parted)), compared, len(steps), first_turn(run, other))
    return TwoRuns(None, compared, len(steps), first_turn(run, other))


def _differences(
    rows: FamilyRows, other: FamilyRows, usual: dict[tuple[int, str], Floats]
) -> list[tuple[int, Divergence]]:
    """Rows that differ by more than is allowed, with their indices.

    Args:
        usual: The largest differences so far, by rank and family; those of this step are added.
    """
    mine, others = size_of(rows), size_of(other)
    if mine is None or others is None or not rows.names:
        return []
    floors = floor_of(rows, mine)
    relative = relative_difference(mine, others, floors)
    op = "norm" if "norm" in rows.ops else "absmax"
    shown = [(op, float(one), float(two)) for one, two in zip(mine, others)]
    for row, larger, statistic in _other_statistics(rows, other, floors):
        if larger > relative[row]:
            relative[row], shown[row] = larger, statistic
    if rows.judged is not None:
        relative[~rows.judged] = 0.0
    key = rows.rank, rows.family
    before = usual.get(key)
    if before is None or len(before) != len(relative):
        before = np.zeros(len(relative))
    least = _UNKNOWN if rows.numel is None else _LEAST
    allowed = np.maximum(least, _GROWTH * np.maximum(before, np.median(before)))
    usual[key] = np.maximum(before, np.where(np.isfinite(relative), relative, 0.0))

    def divergence(row: int) -> Divergence:
        numbers = float(relative[row]), float(allowed[row])
        return Divergence(rows.step, rows.rank, rows.names[row], rows.family, *shown[row], *numbers, 1)

    return [(row, divergence(row)) for row in np.flatnonzero(relative > allowed).tolist()]


def _other_statistics(
    rows: FamilyRows, other: FamilyRows, floors: Floats
) -> Iterator[tuple[int, float, tuple[str, float, float]]]:
    """Differences of what has a sign, which a norm has not: of extremes by the largest value, of means by the rms.

    Yields the row, the relative difference, the statistic and both values.
    """
    given = {op: (rows.column(op), other.column(op)) for op in ("max", "min", "mean", "norm")}
    columns = {op: (mine, its) for op, (mine, its) in given.items() if mine is not None and its is not None}
    scales: list[tuple[str, Floats]] = []
    if "max" in columns and "min" in columns:
        extremes = [np.abs(each) for op in ("max", "min") for each in columns[op]]
        scales += [(op, np.max([*extremes, floors], axis=0)) for op in ("max", "min")]
    if "mean" in columns and "norm" in columns and rows.numel is not None:
        size = np.max([*map(np.abs, columns["norm"]), floors], axis=0)
        scales.append(("mean", size / np.sqrt(np.maximum(rows.numel, 1))))
    for op, scale in scales:
        mine, theirs = columns[op]
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.abs(mine - theirs) / scale
        for row in np.flatnonzero(np.isfinite(relative) & (relative > 0)).tolist():
            yield row, float(relative[row]), (op, float(mine[row]), float(theirs[row]))


def relative_difference(mine: Floats, others: Floats, floor: Floats | float) -> Floats:
    """Differences relative to the larger value; infinite where one of both is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.abs(mine - others) / np.maximum(np.maximum(np.abs(mine), np.abs(others)), floor)
    both = ~np.isfinite(mine) & ~np.isfinite(others)
    found[~np.isfinite(found)] = np.inf
    found[both] = 0.0
    return found


# --- text


_MOST_SHOWN, _MOST_INCIDENTS = 10, 3
_FROM_OUTSIDE = {
    "actv": "the value belongs to the whole model: look at the batch, and at calls outside of modules",
    "actv_grad": "the gradient enters the model here: look at the loss, its scale, and the batch",
}
_FED_BY_NO_MODULE = {
    "actv": "no recorded output of a module feeds it: look at the batch, and at calls outside of modules",
    "actv_grad": "no recorded gradient of a module feeds it: look at the loss, its scale, and the batch",
}
BAD, SOFT = "bold red", "dim"


class TextLine(NamedTuple):
    """A line of text, with a style of rich."""

    text: str
    style: str = ""


def run_lines(judged: JudgedRun) -> Iterator[TextLine]:
    """The row that began, the rows that fed it, the ranks that followed, and the first alerts."""
    run = judged.run
    yield from (TextLine(note, SOFT) for note in run.notes)
    steps = run.steps
    span = f"steps {steps[0]} to {steps[-1]}" if steps else "no steps"
    worst = judged.worst
    if worst is None:
        yield TextLine(f"no alert: {run.path}: {span}, {_count(len(run.ranks), 'rank')}")
        yield from (TextLine(line, SOFT) for line in coverage_lines(judged.watched))
        return
    first = worst.first
    yield TextLine(judged.headline, BAD)
    yield TextLine(f"  {first.op} {first.value:.6g}, expected {first.expected}")
    for each in judged.feeding:
        size = "not recorded" if each.size is None else f"{each.size:.6g}"
        state = "abnormal" if each.is_abnormal else "as usual"
        yield TextLine(f"  fed by {each.name} ({each.family}): norm {size}, {state}")
    if worst.names_a_cause or first.family == GRADIENT_DIRECTION:
        pass  # The rows that fed it do not tell.
    elif first.family in _FROM_OUTSIDE and module_of(first.name) == "":
        yield TextLine(f"  {_FROM_OUTSIDE[first.family]}")
    elif first.family in _FED_BY_NO_MODULE and not any(each.family == first.family for each in judged.feeding):
        yield TextLine(f"  {_FED_BY_NO_MODULE[first.family]}")
    elif not any(each.is_abnormal for each in judged.feeding) and judged.feeding:
        yield TextLine("  the rows that fed it are as usual: the fault is in this module, or in its weights")
    for rank, step in sorted(judged.followed.items()):
        yield TextLine(f"  rank {rank} follows at step {step}")
    others = [each for each in judged.incidents if each is not worst]
    for incident in others[:_MOST_INCIDENTS]:
        alerts = _count(len(incident.findings), "alert")
        yield TextLine(f"other incident ({alerts}): {incident.first.text()}")
    if len(others) > _MOST_INCIDENTS:
        yield TextLine(f"{_count(len(others) - _MOST_INCIDENTS, 'more incident')}; --json has all of them")
    yield TextLine(f"{_count(len(judged.findings), 'alert')} in {run.path}, {span}, {_count(len(run.ranks), 'rank')}:")
    shown = worst.findings[:_MOST_SHOWN]
    yield from (TextLine(f"  {found.text()}") for found in shown)
    if len(judged.findings) > len(shown):
        yield TextLine(f"  {len(judged.findings) - len(shown)} more; --json has all of them")


def two_runs_lines(judged: JudgedRun, other: JudgedRun, difference: TwoRuns) -> Iterator[TextLine]:
    """The first value that differs, and the answer about each run."""
    yield from _difference_lines(difference)
    yield from run_lines(judged)
    yield from run_lines(other)


def _difference_lines(difference: TwoRuns) -> Iterator[TextLine]:
    first = difference.first
    if difference.turn is not None:
        begun, hint = turn_lines(difference.turn)
        yield TextLine(begun, BAD)
        yield TextLine(hint)
    if first is None:
        yield TextLine(
            f"no difference beyond rounding in {difference.compared} rows of {difference.steps} common steps"
        )
        return
    yield TextLine(f"first difference: {first.text()}", BAD)
    yield TextLine(f"  {_count(first.rows, 'row')} {'differs' if first.rows == 1 else 'differ'} in this step")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
