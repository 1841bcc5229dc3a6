"""Rules over the course of a training: hyper-parameters, state of the optimizer, loss scale, tied weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from probe.common.report.trends import COURSE
from probe.monitor.alerts.rows import FamilyRows, Finding, Kind, kind_of
from probe.monitor.alerts.tracks import size_of

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
            why = f"tied weights part: {pair} were one parameter, and are two from here on"
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
