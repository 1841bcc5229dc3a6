"""The rule over gradients that were there and are no longer: a parameter that nothing uses now.

Where the files say that the program has frozen a parameter, by a row without values, it is not reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from probe.monitor.alerts.experts import expert_of
from probe.monitor.alerts.rows import FamilyRows, Finding, finding

MISSING_STEPS = 16
"""Steps in a row. A guess: tasks and layers may take turns."""
_Key = tuple[str, int]


class _Missing(NamedTuple):
    step: int
    looks: int
    had: int
    rows: FamilyRows
    row: int


class MissingGradients:
    """Parameters that had gradients in several steps and have none now, while others have.

    Nothing is computed as long as the rows of a step are those of the step before.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._rows: FamilyRows | None = None
        self._positions: dict[_Key, int] = {}
        self._begun = 0
        self._looks = 0
        self._had: dict[_Key, int] = {}
        self._frozen: set[_Key] = set()
        self._missing: dict[_Key, _Missing] = {}

    def look(self, step: int, rank: int, families: Mapping[str, FamilyRows], history: int) -> list[Finding]:
        """Findings of the step.

        Args:
            history: Steps in which a parameter must have had a gradient.
        """
        rows = families.get("grad_reduced") or families.get("grad_unreduced")
        if rows is None:
            return []
        if rows.key != self._key:
            self._change(step, rows, history)
        self._looks += 1
        found = []
        for each in self._missing.values():
            if self._looks - each.looks == MISSING_STEPS:
                why = f"the parameter has had no gradient for {MISSING_STEPS} steps, after {each.had} with one"
                text = f"{why}: it was frozen, or is not used any more"
                args = each.step, rank, "unchanged", float("nan"), "a gradient, as before", text
                found.append(finding(each.rows, each.row, "norm", *args))
        return found

    def _change(self, step: int, rows: FamilyRows, history: int) -> None:
        """Other parameters than in the step before have gradients."""
        stages = rows.stages or (0,) * len(rows.names)
        keys = list(zip(rows.names, stages))
        frozen = () if rows.judged is None else np.flatnonzero(~rows.judged & np.isnan(rows.values).all(axis=1))
        empty = set(map(int, frozen))
        self._frozen.update(keys[at] for at in empty)
        positions = {key: at for at, key in enumerate(keys) if at not in empty}
        self._frozen.difference_update(positions)
        for key, at in self._positions.items():
            had = self._had[key] = self._had.get(key, 0) + self._looks - self._begun
            is_known = key in positions or key in self._frozen or expert_of(key[0]) is not None
            if not is_known and had >= history and self._rows is not None:
                self._missing[key] = _Missing(step, self._looks, had, self._rows, at)
        for key in positions:
            self._missing.pop(key, None)
        self._key, self._rows, self._positions, self._begun = rows.key, rows, positions, self._looks
