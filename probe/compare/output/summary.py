"""Summary of a comparison: the first divergence, counts, the first findings, unmatched records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Optional

from probe.common.align.row import Row
from probe.common.dump.levels import Levels
from probe.common.environment.differences import OutsideDifference
from probe.compare.coverage import Coverage
from probe.compare.output.outside import outside_of
from probe.compare.pairing import Pairing
from probe.compare.result import (
    CANNOT_TELL,
    DIVERGENCE,
    NONE,
    Answer,
    Carried,
    ComparisonResult,
    Difference,
    Divergence,
    Mode,
    Origin,
    Truncation,
)
from probe.compare.rules import PROBE_ROWS, RowRules, is_equal

SUSPECTS = 5
"""The number of records with a finding that a summary lists, and of calls that its text names after the first that
diverges."""
EXAMPLES = 3
"""The number of records without match, and of renamed layers, that a summary lists."""


RECORD_SKETCHES = "record both runs with sketches"
"""The end of the reason where statistics cannot decide."""
TOO_LITTLE = "not enough in common"
"""The beginning of the reason where too little was compared to say that nothing diverges."""

_NO_DIVERGENCE: dict[str, Any] = {
    "first": None,
    "stack": [],
    "golden_stack": [],
    "suspects": [],
    "is_complete": True,
    "merged": None,
}
"""The keys of a divergence where there is none."""


def in_words(step: str, label: str) -> str:
    """A step and a rank: ``step 1, rank 0`` of ``step1`` and ``rank0``."""
    found = (re.sub(r"^(step|rank|copy)(\d+)$", r"\1 \2", each) for each in (step, label) if each)
    return ", ".join(re.sub(r"^proc(\d+)$", r"process \1", each) for each in found)


def undecided_in_words(difference: Difference) -> str:
    """A difference whose effect is not known, with the smallest effect that would be visible."""
    record = difference.record or difference.golden_record
    if difference.is_value:
        # The reason says what was looked for.
        return f"{record}: {difference.shown_reason}"
    if difference.shows_from is not None:
        seen = f"only an effect of {difference.shows_from:.1e} or more on what is computed from it would be visible"
    elif difference.record and difference.golden_record:
        seen = "its effect was looked for in the results of this call, of the module around it and of the calls "
        seen += "that use them; none of these could be compared"
    else:
        seen = "its effect was looked for in the values of the other run and in what is computed from this call; "
        seen += "none of these shows or excludes one"
    return f"{record}: {difference.shown_reason}; {seen}"


@dataclass(frozen=True)
class Suspect:
    """A record with a finding on it, beyond having no match."""

    record: str
    golden_record: str
    verdict: str
    """The result of its row."""
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
class Unjudged:
    """Tensors whose values could not be held against each other."""

    items: int = 0
    first: list[str] = field(default_factory=list)
    """The names of the first of them."""


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
    """True if anything is not the same, however little."""
    divergence: Optional[Divergence]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The first call that differs by more than its inputs explain."""
    suspects: list[Suspect]
    suspect_records: int
    """The number of records that have a finding; `suspects` are the first of them."""
    target_only: int
    """Items of the target without a match."""
    golden_only: int
    tables: list[str]
    target_unmatched: Unmatched
    golden_unmatched: Unmatched
    levels: Levels = (None, None)
    """The levels of target and golden side."""
    truncations: list[Truncation] = field(default_factory=list)
    """The sides that end early."""
    without_tree: list[str] = field(default_factory=list)
    """The sides without construct.json."""
    unjudged: Unjudged = field(default_factory=Unjudged)
    """The values that were to be compared and could not be."""
    saved_values: bool = False
    """True if these are saved values (debug.json), of which nobody knows which comes from which."""
    coverage: Coverage = field(default_factory=Coverage)
    """The part that was compared."""
    pairing: Pairing = field(default_factory=Pairing)
    """The way in which the calls of both sides were paired."""
    with_effect: list[Difference] = field(default_factory=list)
    """The differences in calls that diverge."""
    without_effect: list[Difference] = field(default_factory=list)
    """The differences that change no value."""
    undecided: list[Difference] = field(default_factory=list)
    """Differences that may have an effect that nothing would show."""
    follows: Optional[Origin] = None  # noqa: UP045
    """The step and rank whose divergence has reached this one, which is not judged anew then."""
    carried: Optional[Carried] = None  # noqa: UP045
    """The parameters at the beginning of the step."""
    left_out: str = ""
    """The first step and process of the runs that was not compared, because a pool took tasks in another order."""
    without_sketches: str = ""
    """``one program``, ``two programs`` or ``two frameworks``, where a run has no sketches and no tensors."""
    missing: Sequence[str] = ()
    """The steps and ranks that one run has alone, which the last pair of their step, or of all, tells."""
    rules: RowRules = PROBE_ROWS
    """The rules that gave the rows their results."""
    outside: list[OutsideDifference] = field(default_factory=list)
    """Differences outside of the model: environment and data, the most likely cause first."""

    @property
    def has_matches(self) -> bool:
        """True if anything of one side was matched with anything of the other."""
        return self.rows > self.target_only + self.golden_only

    @property
    def is_too_little_in_common(self) -> bool:
        """True if nothing diverges because too little was compared."""
        return self.divergence is None and self.has_matches and not self.coverage.is_enough

    @property
    def answer(self) -> Answer:
        """The answer: ``divergence``, ``none`` or ``cannot_tell``."""
        if self.divergence is not None:
            return DIVERGENCE
        return CANNOT_TELL if self.untold else NONE

    @property
    def why(self) -> str:
        """The reason of the answer: the cause or the value that diverges, what explains all, or why nobody can tell."""
        if self.divergence is not None:
            return self.divergence.first.cause or self.divergence.first.reason
        return self.untold or self.explanation

    @property
    def explanation(self) -> str:
        """The differences of a run that does not diverge, in words."""
        return "all differences are within rounding error" if self.differs else "nothing differs"

    @property
    def untold(self) -> str:
        """The reason why nobody can tell that these do not diverge; empty if they do, or if it is known."""
        if self.divergence is not None:
            return ""
        if self.follows is not None:
            where = in_words(self.step, self.label) or "it"
            return f"{where} follows {in_words(self.follows.step, self.follows.label)}"
        if not self.has_matches:
            return "no record of one dump matches a record of the other"
        if self.is_too_little_in_common:
            compared, records = self.coverage.compared_records, self.coverage.records
            return f"{TOO_LITTLE}: only {compared} of {records} records match ({100 * compared // records} %)"
        if self.left_out:
            return f"{TOO_LITTLE}: the processes of a pool took other tasks in each run, starting at {self.left_out}"
        if self.missing:
            return "; ".join(self.missing)
        if self.unjudged.items:
            number = self.unjudged.items
            return f"the values of {number} tensor{'' if number == 1 else 's'} could not be judged"
        if self.saved_values and self.differs:
            return "saved values differ, and a dump does not record which value is computed from which; see the table"
        found = undecided_in_words(self.undecided[0]) if self.undecided else ""
        if not found and self.differs and self.without_sketches not in ("", "one program"):
            found = f"statistics do not tell which values of {self.without_sketches} belong together"
        return f"{found}; {RECORD_SKETCHES}" if found and self.without_sketches else found

    @property
    def worst(self) -> str:
        """The worst result of any row that is a finding; the best of all results without one."""
        return next((result for result in self.rules.findings if self.counts.get(result)), self.rules.results[0])

    def as_json(self) -> dict[str, Any]:
        """The summary as values that JSON has, under the keys that scripts read."""
        found = asdict(replace(self, rules=PROBE_ROWS))
        del found["rules"], found["carried"], found["outside"], found["without_sketches"]
        found["environment"] = [
            {"kind": each.kind, "name": each.name, "target": each.target, "golden": each.golden, "text": each.text}
            for each in self.outside
        ]
        follows = found.pop("follows")
        found["divergence"] = {**(found["divergence"] or _NO_DIVERGENCE), "answer": self.answer, "why": self.why}
        found["divergence"]["follows"] = follows
        found["missing"] = list(self.missing)
        found["endings"] = found.pop("truncations")
        return found


@dataclass
class Tally:
    """The totals of rows."""

    rows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """The number of rows that have each result, from the best to the worst."""
    differs: bool = False
    suspects: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    """The golden record and the message of each finding, by result, the worst first, and record."""
    target_only: int = 0
    golden_only: int = 0
    target_alone: list[str] = field(default_factory=list)
    """Records of the target of which no item has a match."""
    golden_alone: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    """Items of the target whose values could not be held against those of the golden side."""


def tally(rows: Sequence[Row], mode: Mode, rules: RowRules) -> Tally:
    """Count `rows`, in which records are whole."""
    worst = rules.findings[0]
    found: dict[str, dict[str, tuple[str, str]]] = {result: {} for result in rules.findings}
    for row in rows:
        if row.result not in found or row.target is None or row.record in found[row.result]:
            continue
        # To have no match is counted by itself.
        if row.golden is None and row.result != worst:
            continue
        message = next(text for text in row.messages if text.startswith(row.result))
        found[row.result][row.record] = row.golden_record or "", message
    counts = Counter([row.result for row in rows])
    target_only = sum([row.golden is None for row in rows])
    golden_only = sum([row.target is None for row in rows])
    return Tally(
        len(rows),
        {result: counts[result] for result in rules.results},
        any(_differs(row, mode) for row in rows),
        found,
        target_only,
        golden_only,
        _alone(row for row in rows if row.target is not None) if target_only else [],
        _alone(rows, of_golden=True) if golden_only else [],
        [row.target.name for row in rows if not row.judged and row.target is not None] if mode is Mode.TENSOR else [],
    )


def _alone(rows: Iterable[Row], of_golden: bool = False) -> list[str]:
    matched: dict[str, bool] = {}
    for row in rows:
        record = row.record if not of_golden or row.target is None else row.golden_record
        if record is not None:
            matched[record] = matched.get(record, False) or (row.target is not None and row.golden is not None)
    return [record for record, has_match in matched.items() if not has_match]


def summarise(result: ComparisonResult, rules: RowRules = PROBE_ROWS) -> Summary:
    """The summary of `result`, with those suspects that have the worst result.

    Args:
        result: The comparison.
        rules: Whose rules gave its rows their results.
    """
    found = tally(result.rows, result.mode, rules)
    stacks = result.stacks or {}
    worst = next((each for each in rules.findings if found.suspects[each]), rules.findings[-1])
    suspects = found.suspects[worst]
    return Summary(
        result.target,
        result.golden,
        result.label,
        result.step,
        result.mode.value,
        found.rows,
        found.counts,
        found.differs,
        result.divergence,
        [
            Suspect(record, golden_record, worst, message, stacks.get(record, []))
            for record, (golden_record, message) in islice(suspects.items(), SUSPECTS)
        ],
        len(suspects),
        found.target_only,
        found.golden_only,
        result.tables,
        Unmatched(len(found.target_alone), found.target_alone[:EXAMPLES]),
        Unmatched(len(found.golden_alone), found.golden_alone[:EXAMPLES]),
        result.levels,
        result.truncations,
        result.without_tree,
        Unjudged(len(found.unjudged), found.unjudged[:EXAMPLES]),
        result.debug,
        result.coverage,
        result.pairing,
        result.with_effect,
        result.without_effect,
        result.undecided,
        None,
        result.carried,
        result.left_out,
        result.without_sketches,
        result.missing,
        rules,
        outside_of(result),
    )


def first_of(summaries: Iterable[Summary]) -> Summary | None:
    """The pair that diverges first; ``None`` if none does.

    Of the earliest step that diverges, the rank with the fewest calls before it. One that got the difference from
    another rank is named only where there is no other.
    """
    found = [(summary, summary.divergence.first) for summary in summaries if summary.divergence is not None]
    if not found:
        return None
    same_step = [(summary, call) for summary, call in found if summary.step == found[0][0].step]
    return min(same_step, key=lambda pair: (pair[1].communicates, pair[1].place))[0]


def _differs(row: Row, mode: Mode) -> bool:
    target, golden = row.target, row.golden
    if target is None or golden is None or target.dtype != golden.dtype or target.shape != golden.shape:
        return True
    if not is_equal(row):
        return True
    return mode is Mode.TENSOR and type(row.metrics[1]) is float and row.metrics[1] != 0


def fails(summaries: Iterable[Summary], level: str) -> bool:
    """True if the runs differ by as much as `level`: ``divergence``, ``error``, ``warning``, or ``never``.

    Of runs that have nothing in common, and of what could not be judged, that cannot be told; see `is_uncompared` and
    `is_unjudged`.
    """
    if level == "divergence":
        return any(summary.divergence is not None for summary in summaries)
    return level != "never" and any(summary.worst in summary.rules.levels[level] for summary in summaries)


def is_uncompared(summaries: Iterable[Summary]) -> bool:
    """True if the runs may differ in a part that was not, or could not be, compared."""
    return any(
        not summary.has_matches
        or summary.unjudged.items
        or summary.is_too_little_in_common
        or summary.left_out
        or summary.missing
        for summary in summaries
    )


def is_unjudged(summaries: Sequence[Summary]) -> bool:
    """True if the runs may diverge though nothing is seen to: it cannot be told of one of them at least."""
    return any(summary.answer == CANNOT_TELL for summary in summaries)
