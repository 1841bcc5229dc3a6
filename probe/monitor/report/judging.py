"""The rules over the files of a run: all findings, the row that began, its sources, the ranks that followed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from probe.common.progress import ProgressCallback
from probe.monitor.alerts.families import execution_order
from probe.monitor.alerts.learned import LearnedRules
from probe.monitor.alerts.ranks import RankRules
from probe.monitor.alerts.rows import FamilyRows, Finding, Floats
from probe.monitor.alerts.tracks import size_of
from probe.monitor.reading.run import MonitorRun
from probe.monitor.report.coverage import Watched, coverage_json, watched_in
from probe.monitor.report.incidents import Incident, incidents_of, worst_of
from probe.monitor.report.names import module_of

_MOST_FEEDING = 6


@dataclass(frozen=True)
class FeedingRow:
    """A row from which the tensor that began was computed."""

    name: str
    family: str
    step: int
    size: Optional[float]  # noqa: UP045
    is_abnormal: bool
    """True if a rule reported it no later than the row that began."""


@dataclass(frozen=True)
class JudgedRun:
    """Findings of the rules in a run."""

    run: MonitorRun
    findings: list[Finding]
    """In the order of execution."""
    incidents: list[Incident] = field(default_factory=list)
    """In the order in which they began."""
    feeding: list[FeedingRow] = field(default_factory=list)
    followed: dict[int, int] = field(default_factory=dict)
    """Step of the first finding of each other rank that has any in the worst incident."""

    @property
    def worst(self) -> Incident | None:
        """The incident that the answer is about."""
        return worst_of(self.incidents)

    @property
    def first(self) -> Finding | None:
        """The finding that began the worst incident."""
        worst = self.worst
        return None if worst is None else worst.first

    @property
    def headline(self) -> str:
        """One line: the row that began the worst incident, and the number of the others."""
        first, others = self.first, len(self.incidents) - 1
        if first is None:
            return "no alert"
        more = f"; {others} other incident{'s' if others > 1 else ''}" if others else ""
        return f"first: {first.text()}{more}"

    @property
    def watched(self) -> list[Watched]:
        """The kinds of rows that the run has, and those that it has not."""
        return watched_in(self.run)

    def as_json(self) -> dict[str, Any]:
        first = self.first
        return {
            "path": self.run.path,
            "ranks": self.run.ranks,
            "steps": len(self.run.steps),
            "first": None if first is None else first.as_json(),
            "fed_by": [vars(each) for each in self.feeding],
            "followed": [{"rank": rank, "step": step} for rank, step in sorted(self.followed.items())],
            "incidents": [each.as_json() for each in self.incidents],
            "alerts": [each.as_json() for each in self.findings],
            **coverage_json(self.watched),
            "notes": self.run.notes,
        }


class RunJudge:
    """All rules over all ranks of a run, step by step."""

    def __init__(self) -> None:
        self._of_rank: dict[int, LearnedRules] = {}
        self._over_ranks = RankRules()

    def judge(self, rows: Sequence[FamilyRows]) -> list[Finding]:
        """Findings that begin in a step, of whose ranks these are the rows."""
        found: list[Finding] = []
        of_rank: dict[int, list[FamilyRows]] = {}
        for each in rows:
            of_rank.setdefault(each.rank, []).append(each)
        for rank, own in of_rank.items():
            found += self._of_rank.setdefault(rank, LearnedRules()).judge(own)
        return found + self._over_ranks.judge(rows)

    def finished(self, found: Iterable[Finding]) -> list[Finding]:
        """Findings as they are after the last step: where a loss scale ended that fell on after it was reported."""
        return [self._of_rank[each.rank].finished(each) if each.rank in self._of_rank else each for each in found]


def judge_run(run: MonitorRun, watch: ProgressCallback | None = None) -> JudgedRun:
    """Judge all steps of a run."""
    judge, found, steps = RunJudge(), [], run.steps
    for index, step in enumerate(steps):
        found += judge.judge([rows for rank in run.ranks for rows in run.rows(rank, step)])
        if watch is not None:
            watch("steps", index + 1, len(steps))
    found = sorted(judge.finished(found), key=execution_order)
    if not found:
        return JudgedRun(run, found)
    made = JudgedRun(run, found, incidents_of(found))
    worst = made.worst
    assert worst is not None
    for each in worst.findings:
        if each.rank != worst.first.rank:
            made.followed.setdefault(each.rank, each.step)
    if not worst.names_a_cause:
        made.feeding.extend(_feeding(run, worst.first, found))
    return made


def _feeding(run: MonitorRun, first: Finding, found: list[Finding]) -> Iterator[FeedingRow]:
    """The rows of the step from which the tensor of a finding was computed, as far as names tell."""
    wanted = _sources(first)
    until = execution_order(first)
    abnormal = {
        (each.family, each.name) for each in found if execution_order(each) <= until and each.rank == first.rank
    }
    count = 0
    own = _values_of(run, first)
    for rows in run.rows(first.rank, first.step):
        sizes = size_of(rows)
        for row, name in enumerate(rows.names):
            if count == _MOST_FEEDING:
                return
            micro = 0 if rows.micro is None else rows.micro[row]
            if own is None:
                feeds = wanted(rows.family, name)
            else:
                is_giver = rows.family == first.family and _gives(first.family, name)
                feeds = is_giver and _is_one(own, rows.values[row])
            if micro == first.micro_step and feeds:
                count += 1
                size = None if sizes is None else float(sizes[row])
                yield FeedingRow(name, rows.family, first.step, size, (rows.family, name) in abnormal)


def _values_of(run: MonitorRun, first: Finding) -> Optional[Floats]:  # noqa: UP045
    """The statistics of a row that a module takes, by which the row that gives it is known; ``None`` of any other."""
    if first.family not in ("actv", "actv_grad") or _gives(first.family, first.name):
        return None
    for rows in run.rows(first.rank, first.step):
        if rows.family == first.family and first.name in rows.names:
            found: Floats = rows.values[rows.names.index(first.name)]
            return found
    return None


def _gives(family: str, name: str) -> bool:
    """True if a module gives a tensor: an output in the forward pass, the gradient of an input in the backward pass."""
    role = name[len(module_of(name)) :]
    return ("output" if family == "actv" else "input") in role


def _is_one(one: Floats, other: Floats) -> bool:
    return len(one) == len(other) and bool(((one == other) | (np.isnan(one) & np.isnan(other))).all())


def _sources(first: Finding) -> Any:
    """A test for family and name: the rows that feed the row of a finding."""
    if first.family in ("actv", "actv_grad"):
        module = module_of(first.name)
        source = "input" if first.family == "actv" else "output"

        def of_module(family: str, name: str) -> bool:
            if name == first.name and family == first.family:
                return False
            rest = name[len(module) :] if name.startswith(module) else ""
            if family == first.family:
                return re.match(rf"\.(?:grad_)?{source}", rest) is not None
            return family == "param_origin" and module != "" and rest.startswith(".") and "." not in rest[1:]

        return of_module
    module = first.name.rpartition(".")[0]

    def of_parameter(family: str, name: str) -> bool:
        if family in ("grad_reduced", "grad_unreduced", "param_origin"):
            return name == first.name and family != first.family
        is_of_module = family in ("actv", "actv_grad") and module_of(name) == module
        return is_of_module and ("input" if family == "actv" else "output") in name[len(module) :]

    return of_parameter
