"""What a comparison says, as plain data: everything that is printed, written or judged further is made from it."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Optional

import msgspec

from probe.compare.records import Item
from probe.compare.sources import Stacks

PASS, WARNING, ERROR = "pass", "warning", "error"

UNSUPPORTED = ("unsupported",) * 6
"""The metrics of real data where there is none."""


class Mode(enum.Enum):
    """What two dumps are compared by."""

    STATISTICS = "statistics"
    TENSOR = "tensor"
    CHECKSUM = "checksum"


class Row(msgspec.Struct, gc=False):
    """One item of the target and what it was matched with, or one that only the golden side has."""

    record: str
    """The record of the target; of the golden side where the target has none."""
    target: Optional[Item]  # noqa: UP045 (evaluated, on Python 3.9 too)
    golden: Optional[Item]  # noqa: UP045
    golden_record: Optional[str] = None  # noqa: UP045
    metrics: tuple[Any, ...] = ()
    """As many as the mode has columns for; a text where there is no number."""
    notes: tuple[str, ...] = ()
    """What matching and measuring found worth saying: ``error: ...``, ``warning: ...`` or ``note: ...``."""
    verdict: str = PASS
    messages: tuple[str, ...] = ()
    requires_grad_consistent: bool = True


@dataclass
class ComparisonResult:
    """Two dumps compared: rows in the order of the target, then what only the golden side has."""

    target: str
    """The file of the target."""
    golden: str
    mode: Mode
    debug: bool
    """Saved values and not calls."""
    rows: list[Row]
    stacks: Stacks | None
    """The target's."""
    golden_stacks: Stacks | None = None
    data_mapping: dict[str, str] | None = None
    """What a layer mapping came to, item by item."""
    label: str = ""
    """``rank0`` or ``proc123`` where there is more than one pair."""
    step: str = ""
    """``step0`` where there are several."""
    tables: list[str] = field(default_factory=list)
    """The files that were written."""

    def counts(self) -> dict[str, int]:
        """Rows by verdict, all three named."""
        found = Counter(row.verdict for row in self.rows)
        return {verdict: found[verdict] for verdict in (PASS, WARNING, ERROR)}
