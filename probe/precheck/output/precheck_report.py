"""The findings of a pre-check, as data, as lines of the terminal and as JSON."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from probe.calls.judged_results import JudgedResult
from probe.calls.verdict.subject import FAILURES, NOT_RUN, SUSPECT, KernelVerdict
from probe.common.dump.naming import file_name
from probe.precheck.case_results import CaseResult
from probe.precheck.output.run_journal import VERSION, plain
from probe.precheck.rules import AgainstDevice

_MOST_SHOWN = 20
"""Cases that are printed; a guess."""
_MOST_REASONS = 6
"""Reasons that are printed; a guess."""


@dataclass(frozen=True)
class Report:
    """The result of a pre-check."""

    path: str
    """The dump."""
    framework: str
    device: str
    results: Sequence[CaseResult]
    """In the order of the dump."""
    seconds: float
    checked: int
    """The number of cases that were checked in these seconds; others were done by an earlier run."""
    ending: str = ""
    """The reason why the end of the run is missing in the dump, as the end of a sentence; empty if it is not."""
    files: list[str] = field(default_factory=list)
    against: Optional[AgainstDevice] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The verdict of other rules on each case, given the table of another device."""

    @property
    def run(self) -> int:
        """The number of cases that were run."""
        return sum(not result.not_run for result in self.results)

    def with_status(self, *statuses: str) -> list[CaseResult]:
        """The cases whose worst status is one of these."""
        return [result for result in self.results if result.status in statuses]

    @property
    def failed(self) -> list[CaseResult]:
        """The cases that are wrong."""
        return self.with_status(*FAILURES)

    @property
    def suspects(self) -> list[CaseResult]:
        """The cases with an error above what the operation should reach, and below ten times of it."""
        return self.with_status(SUSPECT)


def worst_row(result: CaseResult) -> JudgedResult:
    """The row that a failing case is shown by: the first one with its worst status."""
    return next(row for row in result.rows if row.verdict.status == result.status)


def lines(report: Report) -> Iterator[str]:
    """The answer, the failing cases, and what was not run."""
    if report.ending:
        yield f"{report.path} {report.ending}."
    yield _summary(report)
    shown = [*report.failed, *report.suspects]
    for result in shown[:_MOST_SHOWN]:
        yield from _case(result)
    if len(shown) > _MOST_SHOWN:
        yield f"... and {len(shown) - _MOST_SHOWN} more in {report.files[0] if report.files else 'the tables'}."
    yield from _left_out(report)
    if report.against is not None:
        against = report.against
        rest = len(against.rows) - against.compared
        lacking = f"; {rest} more cannot be compared" if rest else ""
        yield f"against the other device: {len(against.worse)} of {against.compared} cases are worse{lacking}"
        yield from (f"  {name}" for name in against.worse[:_MOST_SHOWN])
    for path in report.files:
        yield f"written: {path}"
    if shown:
        row = worst_row(shown[0])
        direction = "backward" if row.of else "forward"
        # Names come from a dump, and users paste this into a shell.
        words = report.path, f"{shown[0].name}.{direction}", "--emit", file_name(shown[0].name, ".py")
        yield f"next: msprobe replay {shlex.join(map(str, words))}"


def _summary(report: Report) -> str:
    count = Counter(result.status for result in report.results)
    run = report.run
    failed = sum(count[status] for status in FAILURES)
    is_good = run and not (failed or count[SUSPECT])
    good = ": each result is as exact as its operation can be" if is_good else ""
    parts = [
        f"{failed} wrong" if failed else "",
        f"{count[SUSPECT]} suspect" if count[SUSPECT] else "",
        f"{count[NOT_RUN]} not run" if count[NOT_RUN] else "",
    ]
    texts = ", ".join(part for part in parts if part)
    generated = any(result.inputs == "generated" for result in report.results if not result.not_run)
    inputs = "; inputs were generated from the recorded statistics" if generated else ""
    rate = (
        f", {report.checked / report.seconds:.0f} calls per second"
        if report.seconds > 0 and run and report.checked
        else ""
    )
    return f"{run} calls run on {report.device}{rate}{good}{f'; {texts}' if texts else ''}{inputs}."


def _case(result: CaseResult) -> Iterator[str]:
    row = worst_row(result)
    also = f" (represents {result.stands_for} calls)" if result.stands_for > 1 else ""
    cast = f", under autocast to {result.autocast}" if result.autocast else ""
    of = f", the gradient of {row.of.partition('.forward.')[2]}" if row.of else ""
    yield f"{row.verdict.status}: {row.name}{of}: {row.dtype} {list(row.shape)}{cast}{also}"
    fits = f"; fits {row.verdict.fits}" if row.verdict.fits else ""
    yield f"  result:  {row.verdict.interpretation}{fits}"
    worst = worst_element(row.verdict)
    if worst:
        yield f"  worst:   {worst}"


def worst_element(verdict: KernelVerdict) -> str:
    """The worst element with both values and its error in units of the tolerance; empty where there is none."""
    if verdict.worst_index is None:
        return ""
    index = f"element {list(verdict.worst_index)} is " if verdict.worst_index else ""
    text = f"{index}{_digits(verdict.worst_result)}, exact {_digits(verdict.worst_reference)}"
    if verdict.ratio is None or verdict.tolerance is None or not math.isfinite(verdict.ratio):
        return text
    return f"{text}; error {verdict.ratio:.3g} times the tolerance of {verdict.tolerance:.2g}"


def _digits(value: complex | None) -> str:
    return f"{value:.9g}" if isinstance(value, (float, complex)) else str(value)


def _left_out(report: Report) -> Iterator[str]:
    """The reasons for which cases were not run, the most frequent one first."""
    reasons = Counter(result.not_run for result in report.results if result.not_run)
    reasons.update(f"backward: {each.backward_not_run}" for each in report.results if each.backward_not_run)
    for reason, count in reasons.most_common(_MOST_REASONS):
        yield f"not run: {count} call{'' if count == 1 else 's'}: {reason}"
    if len(reasons) > _MOST_REASONS:
        yield f"not run: {len(reasons) - _MOST_REASONS} more reasons are in the tables"


def as_json(report: Report) -> dict[str, Any]:
    """The whole of it, for machines."""
    return {
        "version": VERSION,
        "dump": report.path,
        "framework": report.framework,
        "device": report.device,
        "ending": report.ending,
        "seconds": round(report.seconds, 3),
        "counts": dict(Counter(result.status for result in report.results)),
        "cases": [plain(result) for result in report.results],
        "second_stage": None if report.against is None else list(report.against.rows),
        "files": report.files,
    }
