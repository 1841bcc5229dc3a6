"""Whether what `overflow_check` says first of a generated case is what is true of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generated.truth import Truth, truth_of

from probe.overflow.in_python import overflow_check


@dataclass(frozen=True)
class Outcome:
    """One case: what is true, what was said first, and what is wrong with that."""

    truth: Truth
    said: tuple[str, ...]
    wrong: str
    """Empty where it is right."""


def judge(folder: Path) -> Outcome:
    """Search one case and judge what is found."""
    truth = truth_of(folder)
    report = overflow_check(folder, jobs=1)
    first = list(report.first)
    said = tuple(f"{each.kind}: rank {each.rank} {each.record}" for each in first)
    return Outcome(truth, said, _what_is_wrong(truth, report, first))


def _what_is_wrong(truth: Truth, report: Any, first: list[Any]) -> str:
    if not truth.required:
        return _more_than(truth, first)
    steps = [each.step for each in report.steps if any(finding.is_first for finding in each.findings)]
    if not steps:
        return "nothing found"
    if steps[0] != truth.step:
        return f"step {steps[0]} for step {truth.step}"
    for rank, records in truth.required.items():
        named = [each for each in first if rank == each.rank and each.record in records]
        # The other ranks of a collective call are named with it.
        named += [each for each in first if each.kind == "communication" and rank in each.others]
        if not named:
            return f"rank {rank}: {' or '.join(records)} not named"
        if named[0].kind not in truth.kinds:
            return f"rank {rank}: {named[0].kind} for {' or '.join(truth.kinds)}"
    return _more_than(truth, first)


def _more_than(truth: Truth, first: list[Any]) -> str:
    """What is named and is not true."""
    for each in first:
        for rank in (each.rank, *each.others):
            there = (*truth.required.get(rank, ()), *truth.allowed.get(rank, ()))
            if not there or (rank == each.rank and each.record not in there):
                return f"rank {rank}: {each.record} named as {each.kind}"
    return ""
