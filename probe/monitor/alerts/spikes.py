"""Rules over the history of a row: values that are not finite, sudden growth, slow growth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from probe.monitor.alerts.rows import FamilyRows, Finding, Flags, Floats, Kind
from probe.monitor.alerts.tracks import WINDOW, Block, Track, log_size, size_of

LEAST_DECADES = 1.0
"""A spike is larger than everything in the window by this many decades, and by the width of the window. Measured: over
six healthy trainings (`benchmarks/monitor_alerts.py`) the largest excess was 0.6 decades, and half the width."""
_OF_STATE = 2.0
"""Second moments are squares, and so are their decades."""
_DRIFT_STEPS = WINDOW // 2
_UNDEFINED = ("id", "zeros", "ratio", "std", "kurtosis", "sr")
"""Statistics that finite values may not have: a kurtosis of equal values, a ratio to zero, an id of several values."""


def nonfinite(block: Block, track: Track) -> list[Finding]:
    """Rows with a NaN or an infinity, from the first step on.

    An activation that has one infinity, on the side of its minimum alone, is a mask that is added to scores. The ratio
    of an update is infinite for a weight that began as zero; the two norms that it is made of show what is not finite.
    So do the other statistics of a tensor whose kurtosis or standard deviation is undefined.
    """
    counts = block.column("nans")
    if np.isfinite(block.values).all() and not (counts is not None and counts.any()):
        # The usual case.
        if track.flags("nonfinite").any():
            track.begins("nonfinite", np.zeros(track.length, dtype=np.bool_))
        return []
    bad: Flags = ~np.isfinite(block.values)
    for op in _UNDEFINED:
        if op in block.ops:
            bad[:, block.ops.index(op)] = False
    holds: Flags = np.asarray(bad.any(axis=1))
    if counts is not None:
        holds |= counts > 0
    holds &= block.judged & ~_masks(block)
    found = []
    for row in track.begins("nonfinite", holds).tolist():
        has_nan = bool(np.isnan(block.values[row][bad[row]]).any()) or (counts is not None and counts[row] > 0)
        op = block.ops[int(np.argmax(bad[row]))] if bad[row].any() else "nans"
        value = float(block.values[row, block.ops.index(op)])
        why = f"the tensor contains {'NaN' if has_nan else 'an infinity'}"
        found.append(block.finding(row, op, "nonfinite", value, "finite values", why))
    return found


def _masks(block: Block) -> Flags:
    low, high, counts = block.column("min"), block.column("max"), block.column("nans")
    found: Flags = block.of_kind(Kind.ACTIVATION)
    if low is None or high is None:
        return np.zeros_like(found)
    if counts is not None:
        found &= counts == 0
    return found & np.isneginf(low) & np.isfinite(high)


def growth(block: Block, track: Track, min_history: int) -> list[Finding]:
    """Rows that spike, and rows that drift."""
    sizes = block.sizes
    if sizes is None:
        return []
    logs = log_size(sizes, block.floors(track))
    is_compared, least, is_loss = track.kept("least", 0, lambda: _limits(block))
    logs[~(block.judged & is_compared)] = np.nan
    op = "norm" if "norm" in block.ops else "absmax"
    at = track.at
    window, count = track.window[at], track.count[at]
    high, low = np.fmax.reduce(window, axis=1), np.fmin.reduce(window, axis=1)
    with np.errstate(invalid="ignore"):
        # A hard example in a training whose loss is nearly zero has a gradient about as large as any before.
        ever = track.array("ever", lambda rows: np.full(rows, -np.inf))
        is_known = is_loss & (logs <= ever[at] + least / 2)
        ever[at] = np.fmax(ever[at], logs)
        limit = high + np.maximum(least, high - low) + np.where(is_known, least, 0.0)
        spikes: Flags = (count >= min_history) & (logs > limit)
    found = []
    for row in track.begins("spike", spikes).tolist():
        times, steps = 10 ** float(logs[row] - high[row]), min(int(count[row]), WINDOW)
        why = f"{op} {sizes[row]:.3g} is {times:.3g} times the largest value of the last {steps} steps"
        expected = f"{op} at most {10 ** float(limit[row]):.3g}"
        found.append(block.finding(row, op, "spike", float(sizes[row]), expected, why))
    found += _drift(block, track, logs, sizes, op, least)
    # A spike does not widen the window by more than its margin, so that a second one is reported too.
    track.remember(np.where(spikes, limit, logs) if spikes.any() else logs)
    return found


def _limits(block: Block) -> tuple[Flags, Floats, Flags]:
    """Rows that are compared, the decades that each may grow by, and rows whose size follows the loss."""
    states: Flags = block.of_kind(Kind.STATE)
    least = np.where(states, _OF_STATE * LEAST_DECADES, LEAST_DECADES)
    return ~block.of_kind(Kind.OTHER), least, states | block.of_kind(Kind.GRADIENT)


def _drift(block: Block, track: Track, logs: Floats, sizes: Floats, op: str, least: Floats) -> list[Finding]:
    """Rows that have grown tenfold over everything older than the window, and have stayed there."""
    at = track.at
    oldest = track.array("oldest", lambda number: np.full(number, np.nan))
    if int(track.count.max(initial=0)) < WINDOW:
        return []
    oldest[at] = np.fmax(oldest[at], track.leaving())
    with np.errstate(invalid="ignore"):
        holds: Flags = (track.count[at] >= 2 * WINDOW) & (logs > oldest[at] + least)
    found = []
    for row in track.lasts("drift", holds, _DRIFT_STEPS).tolist():
        position = track.position(row)
        before, times = 10 ** float(oldest[position]), 10 ** float(least[row])
        limit = f"over {times:.0f} times {before:.3g}, the largest older value"
        why = f"{op} {sizes[row]:.3g} has been {limit}, for {_DRIFT_STEPS} steps"
        since, expected = int(track.since("drift")[position]), f"{op} at most {before * times:.3g}"
        found.append(block.finding(row, op, "drift", float(sizes[row]), expected, why, since))
    return found


FALL = "gradient_fall"
FALL_DECADES, FALL_STEPS = 3.0, 3
"""Decades below the smallest value of the window, in all parameters, and steps in a row. Measured over the healthy
trainings of `benchmarks/monitor_trainings`: the largest fall of all parameters is 1.1 decades. The steps are a guess:
one batch may have nearly no loss."""
_LEAST_SHARE = 0.5
"""Share of the parameters that have a gradient other than zero before and after. A guess."""


class FallRule:
    """Weight gradients that are smaller by orders of magnitude from one step on."""

    def __init__(self) -> None:
        self._key: object = None
        self._window: list[Floats] = []
        self._since: tuple[int, int, float] | None = None
        """First step and number of steps of a fall, and the decades from the step before, in the middle of all rows."""

    def look(self, families: Mapping[str, FamilyRows], history: int) -> list[Finding]:
        """Findings of the step.

        Args:
            history: Steps that gradients need before they are compared.
        """
        rows = families.get("grad_reduced") or families.get("grad_unreduced")
        sizes = None if rows is None else size_of(rows)
        if rows is None or sizes is None:
            return []
        if rows.key != self._key:
            self._key, self._window, self._since = rows.key, [], None
        logs = log_size(np.where(sizes > 0, sizes, np.nan), 0.0)
        decades = self._fall(logs) if len(self._window) >= history else 0.0
        if decades < FALL_DECADES:
            self._since = None
            self._window = [*self._window, logs][-WINDOW:]
            return []
        since, count, first = self._since or (rows.step, 0, float(np.nanmedian(self._window[-1] - logs)))
        self._since = since, count + 1, first
        if count + 1 < FALL_STEPS:
            return []
        self._window, self._since = [], None
        why = f"the gradients of all parameters fall in one step, by {10**first:.2g} times, and stay there"
        expected = f"a fall by less than {10**FALL_DECADES:g} times"
        return [rows.finding(0, "norm", FALL, float(sizes[0]), expected, why, since)]

    def _fall(self, logs: Floats) -> float:
        """The decades by which every gradient is below the window; 0.0 if too few can be compared."""
        fall = np.fmin.reduce(self._window) - logs
        known = fall[np.isfinite(fall)]
        return float(known.min()) if len(known) and len(known) >= _LEAST_SHARE * len(fall) else 0.0
