"""The rules over the files of a run: all findings, the row that began, its sources, the ranks that followed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Optional

import numpy as np

from probe.common.progress import ProgressCallback
from probe.monitor.alerts.families import execution_order, module_of
from probe.monitor.alerts.learned import LearnedRules
from probe.monitor.alerts.ranks import RankRules
from probe.monitor.alerts.rows import FamilyRows, Finding, Floats
from probe.monitor.alerts.tracks import size_of
from probe.monitor.reading.run import MonitorRun
from probe.monitor.report.coverage import Watched, coverage_json, watched_in
from probe.monitor.report.incidents import Incident, incidents_of, worst_of

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
    """The first rows of the step from which the tensor of a finding was computed, as far as names tell."""
    until = execution_order(first)
    abnormal = {
        (each.family, each.name) for each in found if execution_order(each) <= until and each.rank == first.rank
    }
    families = run.rows(first.rank, first.step)
    feeds = _sources(first, families)
    feeding = ((rows, row) for rows in families for row in range(len(rows.names)) if feeds(rows, row))
    for rows, row in islice(feeding, _MOST_FEEDING):
        name, sizes = rows.names[row], size_of(rows)
        size = None if sizes is None else float(sizes[row])
        yield FeedingRow(name, rows.family, first.step, size, (rows.family, name) in abnormal)


def _sources(first: Finding, families: Sequence[FamilyRows]) -> Callable[[FamilyRows, int], bool]:
    """A test for the rows that feed the row of a finding."""
    module = module_of(first.name)
    is_activation = first.family in ("actv", "actv_grad")
    own = next((each for each in families if each.family == first.family and first.name in each.names), None)
    taken = None if own is None else own.values[own.names.index(first.name)]

    def is_source(family: str, name: str, values: Floats) -> bool:
        if is_activation and taken is not None and not _gives(first.family, first.name):
            # What a module takes, another one has given: the statistics of both are equal.
            same = len(taken) == len(values) and ((taken == values) | (np.isnan(taken) & np.isnan(values))).all()
            return family == first.family and _gives(family, name) and bool(same)
        if is_activation:
            rest = name[len(module) :] if name.startswith(module) else ""
            if family == first.family:
                source = "input" if family == "actv" else "output"
                return name != first.name and re.match(rf"\.(?:grad_)?{source}", rest) is not None
            return family == "param_origin" and module != "" and rest.startswith(".") and "." not in rest[1:]
        if family in ("grad_reduced", "grad_unreduced", "param_origin"):
            return name == first.name and family != first.family
        # A gradient is made of the input of its module, and of the gradient of the output.
        is_of_module = family in ("actv", "actv_grad") and module_of(name) == first.name.rpartition(".")[0]
        return is_of_module and ("input" if family == "actv" else "output") in name[len(module_of(name)) :]

    def feeds(rows: FamilyRows, row: int) -> bool:
        micro = 0 if rows.micro is None else rows.micro[row]
        return micro == first.micro_step and is_source(rows.family, rows.names[row], rows.values[row])

    return feeds


def _gives(family: str, name: str) -> bool:
    """True if a module gives a tensor: an output in the forward pass, the gradient of an input in the backward pass."""
    return ("output" if family == "actv" else "input") in name[len(module_of(name)) :]
