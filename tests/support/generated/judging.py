"""Whether what `overflow_check` says first of a generated case is what is true of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from generated.truth import Truth, truth_of
from probe.common.parallel.tasks import Where
from probe.overflow.find_overflow import find_overflow
from probe.overflow.overflow_report import COMMUNICATION, Finding, Report


@dataclass(frozen=True)
class Outcome:
    """One case: what is true, what was said first, and what is wrong with that."""

    truth: Truth
    said: tuple[str, ...]
    wrong: str
    """Empty where it is right."""

    def __str__(self) -> str:
        truth = self.truth
        return f"{truth.case} ({truth.setting}, {truth.kind}, {truth.fault}): {self.wrong or 'right'}"


def outcome_of(folder: Path) -> Outcome:
    """What is found in one case, and what is wrong with that."""
    truth = truth_of(folder)
    report = find_overflow(str(folder), where=Where(jobs=1))
    said = tuple(f"{each.kind}: rank {each.rank} {each.record}" for each in report.first)
    return Outcome(truth, said, _what_is_wrong(truth, report))


def _what_is_wrong(truth: Truth, report: Report) -> str:
    if not truth.required:
        return _more_than(truth, report.first)
    if report.found is None:
        return "nothing found"
    if report.found.step != truth.step:
        return f"step {report.found.step} for step {truth.step}"
    for rank, records in truth.required.items():
        named = [each for each in report.first if any((rank, record) in _places(each) for record in records)]
        if not named:
            return f"rank {rank}: {' or '.join(records)} not named"
        if named[0].kind not in truth.kinds:
            return f"rank {rank}: {named[0].kind} for {' or '.join(truth.kinds)}"
    return _more_than(truth, report.first)


def _more_than(truth: Truth, first: list[Finding]) -> str:
    """What is named and is not true."""
    for each in first:
        for rank, record in _places(each):
            if record not in (*truth.required.get(rank, ()), *truth.allowed.get(rank, ())):
                return f"rank {rank}: {record} named as {each.kind}"
    return ""


def _places(finding: Finding) -> list[tuple[int, str]]:
    """What a finding names: of communication the calls of all ranks."""
    return finding.members if finding.kind == COMMUNICATION else [finding.key]
