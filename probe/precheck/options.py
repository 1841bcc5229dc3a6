"""The options of `msprobe acc_check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from probe.calls.cases import Selection
from probe.common.parallel.tasks import Where
from probe.precheck.rules import CaseRules


@dataclass(frozen=True)
class PrecheckOptions:
    """The options for checking a dump.

    Args:
        output: The folder of the tables; ``None`` for none.
        devices: Where cases are run; several share the work. Empty for the accelerator that is there, else ``cpu``;
            ``recorded`` judges the results of the dump.
        selection: Which calls are checked.
        rules: Rules of another tool, which judge each case besides ours and write tables of their own; ``None`` for
            none. Without `output` they are not asked.
        resume: A file of an earlier run, whose journal has the cases that are done already.
        error_data: The folder for inputs and results that fail; none are written without.
        seed: What generated inputs are drawn from, besides the names of the records.
        max_memory: GB that one call may take; one that needs more is not run. ``None`` for a quarter of the machine's
            memory, or less where more than two processes work, so that they take no more than half of it together.
        where: Which processes do it.
    """

    output: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    devices: Sequence[str] = ()
    selection: Selection = field(default_factory=Selection)
    rules: Optional[CaseRules] = None  # noqa: UP045
    resume: Optional[str] = None  # noqa: UP045
    error_data: Optional[str] = None  # noqa: UP045
    seed: int = 1234
    max_memory: Optional[float] = None  # noqa: UP045
    where: Where = field(default_factory=lambda: Where(1))
