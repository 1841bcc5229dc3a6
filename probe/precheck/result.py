"""The result of the pre-check for a case: a row for each output and each gradient, and the case as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from probe.calls.judged_results import JudgedResult
from probe.calls.verdict.subject import NOT_RUN, worst_of


@dataclass(frozen=True)
class CaseResult:
    """One case."""

    name: str
    base: str
    rows: tuple[JudgedResult, ...] = ()
    not_run: str = ""
    """The reason why it was not run; empty if it was."""
    backward_not_run: str = ""
    """The reason why its backward was not run, if the dump has one."""
    stands_for: int = 1
    autocast: str = ""
    """The dtype of the autocast under which it was run; empty without."""
    inputs: str = "recorded"
    """``recorded`` values, or ``generated`` ones."""
    saved: tuple[str, ...] = field(default=())
    """Files of failing values."""
    details: Optional[tuple[Mapping[str, Any], ...]] = field(default=(), compare=False)  # noqa: UP045 (evaluated)
    """The rows of the case by the rules of another tool; ``None`` where no such rules have judged it."""

    @property
    def forward(self) -> str:
        """The worst status of its outputs."""
        return NOT_RUN if self.not_run else worst_of(row.verdict.status for row in self.rows if not row.of)

    @property
    def backward(self) -> str:
        """The worst status of its gradients; empty where there are none."""
        if self.not_run or self.backward_not_run:
            return NOT_RUN
        found = [row.verdict.status for row in self.rows if row.of]
        return worst_of(found) if found else ""

    @property
    def status(self) -> str:
        """The worse of both."""
        return worst_of(status for status in (self.forward, self.backward) if status)
