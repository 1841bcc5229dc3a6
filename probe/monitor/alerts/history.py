"""Rules over the history of a row and the course of a training.

Values that are not finite, growth, falls, hyper-parameters, loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from probe.common.report.trends import COSINE, COURSE
from probe.monitor.alerts.rows import FamilyRows, Finding, Flags, Floats, Kind, kind_of
from probe.monitor.alerts.tracks import WINDOW, Block, Track, log_size, size_of

LEAST_DECADES = 1.0
"""A spike is larger than everything in the window by this many decades, and by the width of the window. Measured: over
six healthy trainings (`benchmarks/monitor_alerts.py`) the largest excess was 0.6 decades, and half the width."""
_OF_STATE = 2.0
"""Second moments are squares, and so are their decades."""
_DRIFT_STEPS = WINDOW // 2
_UNDEFINED = ("id", "zeros", "ratio", "std", "kurtosis", "sr", COSINE)
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


# --- falls


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


HYPER, STATE, TIED, SCALE = "hyper_parameter", "optimizer_state", "tied_weights", "loss_scale"
STEADY_STEPS = 5
"""Steps in a row with one value, after which a jump is no schedule: schedules move a value in each step. A guess."""
LEAST_JUMP, LEAST_RATE_JUMP = 2.0, 10.0
"""Ratios of a hyper-parameter, and of a learning rate over its largest value so far, which schedules step down by ten.
Guesses; no healthy training of `benchmarks/MONITOR_ALERTS.md` reaches them."""
LEAST_HALVINGS, HALVING_STEPS = 5, 16
"""A loss scale that falls by 2**5 within so many steps, made or passed over, does not look for its size any more: a
healthy one is halved once when it has grown too large, and several times only while no step has been made. Guesses."""
UNIFORM = 1e-4
"""Relative spread of the ratios of first moments to gradients, which are equal in the first update alone."""


class _Value(NamedTuple):
    last: float
    steady: int
    """Steps in a row with this value."""
    largest: float


class _Collapse(NamedTuple):
    """A loss scale over the steps in which it stays low."""

    before: float
    lowest: float
    skipped: int
    is_over: bool = False

    def why(self, until: str = "") -> str:
        passed = f"; {self.skipped} steps were passed over" if self.skipped > 1 else ""
        fall = f"it falls from {self.before:g} to {self.lowest:.3g}{until}{passed}"
        return f"the loss scale collapses: {fall}; gradients overflow at each scale"


class CourseRules:
    """Rules over the rows of the family ``settings``, and over states that vanish."""

    def __init__(self) -> None:
        self._values: dict[str, _Value] = {}
        self._scales: list[float] = []
        self._scale_fell = False
        self._collapses: list[_Collapse] = []
        self._had_states: dict[str, bool] = {}
        self._state_sizes: dict[str, float] = {}

    def look(self, families: Mapping[str, FamilyRows]) -> list[Finding]:
        """Findings of the step."""
        rows = families.get(COURSE)
        found: list[Finding] = []
        if rows is not None:
            values = rows.column("value")
            if values is not None:
                now = dict(zip(rows.names, values.tolist()))
                for row, (name, value) in enumerate(now.items()):
                    told = self._told(name, value, now)
                    if told is not None:
                        rule, expected, why = told
                        found.append(rows.finding(row, "value", rule, value, expected, why))
        if not any(each.rule == STATE for each in found):
            found += self._states(families)
        return found

    def _told(self, name: str, value: float, now: Mapping[str, float]) -> tuple[str, str, str] | None:
        """Rule, allowed values and sentence for a number that changes as none does in a healthy training."""
        before = self._values.get(name)
        steady = before.steady + 1 if before is not None and before.last == value else 1
        self._values[name] = _Value(value, steady, max(value, value if before is None else before.largest))
        if name == "loss_scale":
            return self._scale(value, int(now.get("loss_scale.skipped_steps", 0)))
        if before is None:
            return None
        if name.startswith("tied: "):
            pair = name[len("tied: ") :]
            why = f"tied weights part: {pair} were one parameter and are two now"
            return (TIED, "one parameter", why) if before.last == 1 and value == 0 else None
        if name in ("state.step", "state.parameters"):
            if value >= before.last or (name == "state.parameters" and value > 0):
                return None
            of_what = (
                "its counter of updates falls" if name == "state.step" else "the number of parameters with it falls"
            )
            why = f"the optimizer state starts anew: {of_what} from {before.last:g} to {value:g}"
            return STATE, f"at least {before.last:g}", why
        if not name.startswith("group"):
            return None
        return _hyper(name.partition(".")[2], value, before)

    def _scale(self, value: float, skipped: int) -> tuple[str, str, str] | None:
        before = max(self._scales, default=value)
        falls = len(self._scales) >= STEADY_STEPS and value * 2**LEAST_HALVINGS <= before
        self._scales = [*self._scales, value][-HALVING_STEPS:]
        is_new, self._scale_fell = falls and not self._scale_fell, falls
        last = self._collapses[-1] if self._collapses else None
        if last is not None and not last.is_over:
            is_over = value * 2**LEAST_HALVINGS > last.before
            more = 0 if is_over else skipped
            self._collapses[-1] = _Collapse(last.before, min(last.lowest, value), last.skipped + more, is_over)
        if not is_new:
            return None
        made = _Collapse(before, value, skipped)
        self._collapses.append(made)
        return SCALE, f"above {before / 2**LEAST_HALVINGS:g}", made.why()

    def finished(self, found: Finding) -> Finding:
        """A finding as it is after the last step: a scale that has fallen on since it was reported."""
        for each in self._collapses if found.rule == SCALE else ():
            if found.expected == f"above {each.before / 2**LEAST_HALVINGS:g}" and each.lowest <= found.value:
                return replace(found, value=each.lowest, why=each.why("" if each.is_over else " by the last row"))
        return found

    def _states(self, families: Mapping[str, FamilyRows]) -> list[Finding]:
        """First moments that are what one update makes of nothing."""
        gradients = families.get("grad_reduced")
        for family in ("exp_avg", "momentum_buffer"):
            rows = families.get(family)
            sizes = None if rows is None else size_of(rows)
            if rows is None or sizes is None or kind_of(family) is not Kind.STATE or len(sizes) < 3:
                continue
            if rows.states_after:
                # A gradient that outweighs all earlier ones has such moments too, and larger ones than before.
                is_smaller = float(np.nansum(sizes)) <= self._state_sizes.get(family, np.inf)
                is_new = is_smaller and gradients is not None and _is_uniform(rows, sizes, gradients)
                self._state_sizes[family] = float(np.nansum(sizes))
            else:
                is_new = bool((sizes == 0).all())
            had, self._had_states[family] = self._had_states.get(family, False), not is_new
            if is_new and had:
                why = "the optimizer state starts anew: all first moments are those of a first update"
                return [rows.finding(0, "norm", STATE, float(sizes[0]), "moments of earlier steps", why)]
        return []


def _hyper(name: str, value: float, before: _Value) -> tuple[str, str, str] | None:
    if before.steady < STEADY_STEPS or value == before.last:
        return None
    # What a beta leaves of the past is one minus it.
    distances = [1 - each if "beta" in name or name == "momentum" else each for each in (before.last, value)]
    if name == "lr":
        is_jump = before.largest > 0 and value >= LEAST_RATE_JUMP * before.largest
    else:
        low, high = sorted(map(abs, distances))
        is_jump = high >= LEAST_JUMP * low
    why = f"the hyper-parameter {name} changes from {before.last:g} to {value:g}, after {before.steady} steps"
    return (HYPER, f"{before.last:g}", why) if is_jump else None


def _is_uniform(rows: FamilyRows, sizes: np.ndarray, gradients: FamilyRows) -> bool:
    of_gradients = size_of(gradients)
    if of_gradients is None:
        return False
    known = dict(zip(gradients.names, of_gradients.tolist()))
    pairs = [(size, known[name]) for name, size in zip(rows.names, sizes.tolist()) if known.get(name, 0) > 0]
    ratios = np.array([size / gradient for size, gradient in pairs])
    if len(ratios) < 3 or not np.isfinite(ratios).all():
        return False
    return bool(0 < ratios.max() <= 1 + UNIFORM and np.ptp(ratios) <= UNIFORM * ratios.max())
