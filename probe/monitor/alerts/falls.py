"""The rule over gradients that fall in one step, all at once, as no convergence makes them fall."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from probe.monitor.alerts.rows import FamilyRows, Finding, Floats
from probe.monitor.alerts.tracks import WINDOW, log_size, size_of

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
