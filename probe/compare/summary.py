"""What a comparison comes to, in a few lines: where two runs part, counts, the first findings, what has no match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from probe.compare.endings import Ending
from probe.compare.levels import Levels
from probe.compare.result import ERROR, PASS, WARNING, ComparisonResult, Divergence, Mode, Row
from probe.compare.tolerance import is_same

SUSPECTS = 5
"""How many records a summary names."""
NAMED = 3
"""How many it names of those without match, and of what is called differently."""


@dataclass(frozen=True)
class Suspect:
    """A record with a finding on it, beyond having no match."""

    record: str
    golden_record: str
    verdict: str
    message: str
    stack: list[str]


@dataclass(frozen=True)
class Unmatched:
    """Records that one side has alone."""

    records: int
    """Records of which no item has a match."""
    first: list[str]
    """The first of them."""


@dataclass(frozen=True)
class Layers:
    """A layer mapping that was proposed."""

    met: int
    """Layers of the target with a counterpart."""
    renamed: int
    """Those of them that are called differently."""
    rules: int
    names: list[str]
    """The first of the rules, in words."""
    target_only: list[str]
    golden_only: list[str]
    file: str


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
    differs: bool
    """Whether anything is not the same, however little."""
    divergence: Optional[Divergence]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The first call that differs by more than its inputs explain."""
    suspects: list[Suspect]
    suspect_records: int
    """How many records have a finding; `suspects` are the first of them."""
    target_only: int
    """Items of the target without a match."""
    golden_only: int
    tables: list[str]
    target_unmatched: Unmatched
    golden_unmatched: Unmatched
    layers: Optional[Layers] = None  # noqa: UP045
    levels: Levels = (None, None)
    """What target and golden side record."""
    endings: list[Ending] = field(default_factory=list)
    """The sides that end early."""

    @property
    def meets(self) -> bool:
        """Whether anything of one side was held against anything of the other."""
        return self.rows > self.target_only + self.golden_only

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
    target_only = sum([row.golden is None for row in result.rows])
    golden_only = sum([row.target is None for row in result.rows])
    return Summary(
        result.target,
        result.golden,
        result.label,
        result.step,
        result.mode.value,
        len(result.rows),
        result.counts(),
        any(_differs(row, result.mode) for row in result.rows),
        result.divergence,
        list(records.values())[:limit],
        len(records),
        target_only,
        golden_only,
        result.tables,
        _unmatched(row for row in result.rows if row.target is not None) if target_only else Unmatched(0, []),
        _unmatched(result.rows, of_golden=True) if golden_only else Unmatched(0, []),
        _layers(result),
        result.levels,
        result.endings,
    )


def _unmatched(rows: Iterable[Row], of_golden: bool = False) -> Unmatched:
    met: dict[str, bool] = {}
    for row in rows:
        record = row.record if not of_golden or row.target is None else row.golden_record
        if record is not None:
            met[record] = met.get(record, False) or (row.target is not None and row.golden is not None)
    alone = [record for record, has_met in met.items() if not has_met]
    return Unmatched(len(alone), alone[:NAMED])


def _layers(result: ComparisonResult) -> Layers | None:
    proposal = result.proposal
    if proposal is None:
        return None
    names = proposal.names
    return Layers(
        proposal.layers,
        proposal.renamed,
        len(names),
        names[:NAMED],
        proposal.target_only,
        proposal.golden_only,
        result.layer_mapping,
    )


def first_of(summaries: Iterable[Summary]) -> Summary | None:
    """The pair that parts first; ``None`` if none does.

    Of the earliest step that parts, the rank with the fewest calls before it. One that got the difference from
    another rank is named only where there is no other.
    """
    found = [(summary, summary.divergence.first) for summary in summaries if summary.divergence is not None]
    if not found:
        return None
    same_step = [(summary, call) for summary, call in found if summary.step == found[0][0].step]
    return min(same_step, key=lambda pair: (pair[1].communicates, pair[1].place))[0]


def _differs(row: Row, mode: Mode) -> bool:
    n, b = row.target, row.golden
    if n is None or b is None or n.dtype != b.dtype or n.shape != b.shape or not is_same(n, b):
        return True
    return mode is Mode.TENSOR and type(row.metrics[1]) is float and row.metrics[1] != 0


def fails(summaries: Iterable[Summary], level: str) -> bool:
    """Whether the runs differ by as much as `level`: ``divergence``, ``error``, ``warning``, or ``never``.

    Runs that have nothing in common diverge.
    """
    if level == "divergence":
        return any(summary.divergence is not None or not summary.meets for summary in summaries)
    bad = {"error": (ERROR,), "warning": (ERROR, WARNING), "never": ()}[level]
    return any(summary.worst in bad for summary in summaries)
