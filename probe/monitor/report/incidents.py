"""Incidents: findings that are one event, because they are near in time and feed each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.common.report.trends import COURSE
from probe.monitor.alerts.course import HYPER, SCALE, STATE, TIED
from probe.monitor.alerts.experts import ROUTER
from probe.monitor.alerts.falls import FALL
from probe.monitor.alerts.families import Kind, execution_order, kind_of
from probe.monitor.alerts.ranks import NOT_REDUCED, PARTED
from probe.monitor.alerts.rows import Finding
from probe.monitor.alerts.tracks import WINDOW
from probe.monitor.report.names import module_of

GAP = 3
"""Steps between two findings of one incident: an update shows in the next step, and in moments the step after that."""
_NAMED = frozenset((HYPER, STATE, TIED, SCALE, ROUTER, NOT_REDUCED, FALL))
"""Rules that name a cause and not a tensor. It comes before the rows of its first step, in which it is not seen yet."""
_CERTAIN = _NAMED | {PARTED, "nonfinite"}
"""Rules over facts, which no healthy training breaks."""
_SUDDEN = frozenset(("spike", "nonfinite"))
"""Rules over one step, whose passes connect all that they report."""
_OWN_CAUSE = frozenset((HYPER, STATE, TIED, NOT_REDUCED, PARTED))
"""Rules over what a program does, which no other finding brings about."""


@dataclass
class Incident:
    """Findings of one event, in the order of execution."""

    findings: list[Finding] = field(default_factory=list)
    last_sudden: int = -GAP - 1
    """The last step with a sudden finding."""
    last_of_site: dict[str, int] = field(default_factory=dict)
    """By module, the last step with a finding of it."""
    last_of_training: int = -GAP - 1
    """The last step with a finding about the whole training."""
    last_of_row: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """By rank, family and name, the last step with a finding of it."""
    began: set[tuple[str, int]] = field(default_factory=set)
    """Rule and step of each finding."""
    last: int = 0
    """The last step with a finding."""
    changes_training: bool = False
    """True from the step in which another hyper-parameter, state or router, or exploded weights, make another model."""

    @property
    def first(self) -> Finding:
        """The cause that is named in the first step, or else the row that began."""
        began = self.findings[0]
        causes = [each for each in self.findings if each.step == began.step and each.rule in _NAMED]
        return causes[0] if causes and began.rule != "nonfinite" else began

    @property
    def names_a_cause(self) -> bool:
        """True if the first finding is about the training, and not about a tensor that others feed."""
        return self.first.rule in _NAMED

    @property
    def weight(self) -> tuple[int, int]:
        """Comparable size: how certain its rules are, and the decades of its number of rows."""
        rules = {each.rule for each in self.findings}
        rows = len({(each.family, each.name) for each in self.findings})
        return int(bool(rules & _CERTAIN)), int(math.log10(rows))

    def as_json(self) -> dict[str, Any]:
        return {
            "first": self.first.as_json(),
            "alerts": len(self.findings),
            "rules": sorted({each.rule for each in self.findings}),
            "steps": [self.first.step, max(each.step for each in self.findings)],
            "ranks": sorted({each.rank for each in self.findings}),
        }

    def takes(self, found: Finding) -> bool:
        """True if a finding that comes later in the order of execution belongs to this incident."""
        if found.step - self.last_of_training <= GAP:
            return True
        if found.step - self.last_of_row.get(_row_of(found), -WINDOW - 1) <= WINDOW:
            return True
        if (found.rule, found.step) in self.began or (found.rule == ROUTER and found.step == self.last):
            # Rows that turn in one step pass one tensor on, as the output of a module that is the input of the next.
            return True
        if found.rule in _SUDDEN and found.step - self.last_sudden <= GAP:
            return True
        site = site_of(found)
        return any(found.step - step <= GAP and _touch(site, other) for other, step in self.last_of_site.items())

    def brings_about(self, found: Finding) -> bool:
        """True if a later finding, to which nothing is near, may be a consequence of another course of the training.

        Rows are compared with `WINDOW` steps. After as many without a finding, the other course is their history.
        """
        is_batch = found.family == "actv" and found.call == 0 and ".input" in f".{found.name}"
        return (
            self.changes_training and found.rule not in _OWN_CAUSE and not is_batch and found.step - self.last <= WINDOW
        )

    def add(self, found: Finding) -> None:
        """Take a finding."""
        self.findings.append(found)
        self.last = max(self.last, found.step)
        self.began.add((found.rule, found.step))
        self.last_of_row[_row_of(found)] = found.step
        grows = found.rule in _SUDDEN or found.rule == "drift"
        self.changes_training |= found.rule in _NAMED or (grows and kind_of(found.family) is Kind.WEIGHT)
        if found.rule in _SUDDEN:
            self.last_sudden = found.step
        if found.family == COURSE or found.rule in (NOT_REDUCED, ROUTER, FALL):
            self.last_of_training = self.last_sudden = found.step
        else:
            self.last_of_site[site_of(found)] = found.step


def incidents_of(findings: Sequence[Finding]) -> list[Incident]:
    """Group findings, which are in the order of execution, into incidents in the same order."""
    found: list[Incident] = []
    over: list[Incident] = []
    for number, each in enumerate(findings):
        if number and each.step != findings[number - 1].step:
            # Incidents that are over take no more findings, and are not asked.
            over += (incident for incident in found if each.step - incident.last > WINDOW)
            found = [incident for incident in found if each.step - incident.last <= WINDOW]
        taking = [incident for incident in found if incident.takes(each)]
        taking = taking or [incident for incident in found if incident.brings_about(each)][-1:]
        if not taking:
            found.append(Incident())
            taking = found[-1:]
        first, *others = taking
        for other in others:
            # This finding connects what was apart.
            _join(first, other)
            found.remove(other)
        first.add(each)
    found += over
    for incident in found:
        incident.findings.sort(key=execution_order)
    return sorted(found, key=lambda each: execution_order(each.first))


def worst_of(incidents: Sequence[Incident]) -> Incident | None:
    """The incident with the largest weight, the earliest of equal ones."""
    return max(incidents, key=lambda each: each.weight, default=None)


def _join(one: Incident, other: Incident) -> None:
    one.findings += other.findings
    one.last_sudden = max(one.last_sudden, other.last_sudden)
    one.last_of_training = max(one.last_of_training, other.last_of_training)
    one.began |= other.began
    one.last, one.changes_training = max(one.last, other.last), one.changes_training or other.changes_training
    for site, step in other.last_of_site.items():
        one.last_of_site[site] = max(one.last_of_site.get(site, step), step)
    for row, step in other.last_of_row.items():
        one.last_of_row[row] = max(one.last_of_row.get(row, step), step)


def _row_of(found: Finding) -> tuple[int, str, str]:
    return found.rank, found.family, found.name


def site_of(found: Finding) -> str:
    """The module of a row: that of the activation, or that of the parameter."""
    is_tensor = found.family == "actv" or found.family == "actv_grad"
    return module_of(found.name) if is_tensor else found.name.rpartition(".")[0]


def _touch(one: str, other: str) -> bool:
    """True if two modules are one, or one is directly inside of the other; all modules are inside of the model."""
    if one == other:
        return True
    return bool(one and other) and (one.rpartition(".")[0] == other or other.rpartition(".")[0] == one)
