"""Records and files of a run that could not be written."""

from __future__ import annotations

import os

from probe.common import log
from probe.common.config.fields import numbers_text


class Losses:
    """Collects what is missing, step by step, for one line at the end of the run."""

    def __init__(self) -> None:
        self.of_step: dict[int, str] = {}
        """By step, what is missing of it and why."""
        self.are_recoverable = False
        """True if a step's files can be made from its journal."""
        self._told: dict[int, str] = {}

    def add(self, step: int, missing: str, error: BaseException) -> None:
        """`missing` says what is missing of a step; the reason is that of `error`."""
        # Without the path, which is another one for each step.
        reason = getattr(error, "strerror", None) or getattr(error.__cause__, "strerror", None) or error
        self.of_step[step] = f"{missing} ({reason})"

    def log(self, dump_path: str) -> None:
        """Log what is missing, unless it was logged before."""
        if self.of_step == self._told:
            return
        self._told = dict(self.of_step)
        steps: dict[str, list[int]] = {}
        for step, loss in self.of_step.items():
            steps.setdefault(loss, []).append(step)
        parts = [f"step{'s' if len(of) > 1 else ''} {numbers_text(of)}: {loss}" for loss, of in steps.items()]
        text = f"not everything was collected. {'; '.join(parts)}."
        if self.are_recoverable:
            root = os.path.abspath(dump_path)
            text += f" When there is room, `msprobe recover {root}` makes files from the journals."
        log.error(text)
