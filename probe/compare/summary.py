"""What a comparison comes to, in a few lines: counts, the first suspects in order of execution, what has no match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from probe.compare.result import ERROR, PASS, WARNING, ComparisonResult

SUSPECTS = 5
"""How many records a summary names."""


@dataclass(frozen=True)
class Suspect:
    """A record with a finding on it, beyond having no match."""

    record: str
    golden_record: str
    verdict: str
    message: str
    stack: list[str]


@dataclass(frozen=True)
class Summary:
    """One pair of dumps."""

    target: str
    golden: str
    label: str
    step: str
    mode: str
    rows: int
    counts: dict[str, int]
    suspects: list[Suspect]
    suspect_records: int
    """How many records have a finding; `suspects` are the first of them."""
    target_only: int
    """Items of the target without a match."""
    golden_only: int
    tables: list[str]

    @property
    def worst(self) -> str:
        """The worst verdict of any row."""
        return next((verdict for verdict in (ERROR, WARNING) if self.counts[verdict]), PASS)

    def as_json(self) -> dict[str, Any]:
        """The same as values that JSON has."""
        return asdict(self)


def summarise(result: ComparisonResult, limit: int = SUSPECTS) -> Summary:
    """The summary of `result` with at most `limit` suspects; errors count before warnings."""
    found: dict[str, dict[str, Suspect]] = {ERROR: {}, WARNING: {}}
    stacks = result.stacks or {}
    for row in result.rows:
        if row.verdict == PASS or row.target is None or row.record in found[row.verdict]:
            continue
        # To have no match is counted by itself.
        if row.golden is None and row.verdict != ERROR:
            continue
        message = next(text for text in row.messages if text.startswith(row.verdict))
        golden_record = row.golden_record or ""
        found[row.verdict][row.record] = Suspect(
            row.record, golden_record, row.verdict, message, stacks.get(row.record, [])
        )
    records = found[ERROR] or found[WARNING]
    return Summary(
        result.target,
        result.golden,
        result.label,
        result.step,
        result.mode.value,
        len(result.rows),
        result.counts(),
        list(records.values())[:limit],
        len(records),
        sum(row.golden is None for row in result.rows),
        sum(row.target is None for row in result.rows),
        result.tables,
    )


def fails(summaries: Iterable[Summary], level: str) -> bool:
    """Whether any row is as bad as `level`: ``error``, ``warning``, or ``never``."""
    bad = {"error": (ERROR,), "warning": (ERROR, WARNING), "never": ()}[level]
    return any(summary.worst in bad for summary in summaries)
