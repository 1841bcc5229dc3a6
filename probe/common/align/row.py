"""One line of a comparison: two items that belong together, and what was measured of them; and those of two calls."""

from __future__ import annotations

from typing import Any, Optional

import msgspec

from probe.common.dump.reading.records import Item

PASS, WARNING, ERROR = "pass", "warning", "error"
"""The levels of a line or a note."""
NAMES_DIFFER = "note: The names differ; accuracy of fuzzily matched data may be affected."


class Row(msgspec.Struct, gc=False):
    """One item of the target and what it was matched with, or one that only the golden side has.

    Both are one object where the two dumps say the same of a record.
    """

    record: str
    """The record of the target; of the golden side where the target has none."""
    target: Optional[Item]  # noqa: UP045 (evaluated, on Python 3.9 too)
    golden: Optional[Item]  # noqa: UP045
    golden_record: Optional[str] = None  # noqa: UP045
    metrics: tuple[Any, ...] = ()
    """One metric for each column that the mode has; a text where there is no number."""
    notes: tuple[str, ...] = ()
    """Remarks of matching and measuring: ``error: ...``, ``warning: ...`` or ``note: ...``."""
    result: str = ""
    """The result of the row by the rules of the comparison; empty until they were asked."""
    messages: tuple[str, ...] = ()
    requires_grad_consistent: bool = True
    relative_difference: Optional[float] = None  # noqa: UP045
    """The amount by which the two tensors differ, relative to the larger one; ``None`` until that is asked for."""
    explained: Optional[float] = None  # noqa: UP045
    """The part of it that inputs and rounding explain; ``None`` where that was not asked for."""
    judged: bool = True
    """True if the values in the files could be held against each other; if not, their statistics alone were."""


class CallPair:
    """A call of the target and its counterpart, or a call that one side alone made.

    Args:
        record, golden_record: ``None`` where that side did not make the call.
        rows: the items of both, paired.
        how: the reason why one side alone made the call, as `note_reasons` finds it; empty where there is none.
    """

    __slots__ = ("golden_record", "how", "record", "rows")

    def __init__(self, record: str | None, golden_record: str | None, rows: list[Row], how: str = "") -> None:
        self.record, self.golden_record, self.rows, self.how = record, golden_record, rows, how
