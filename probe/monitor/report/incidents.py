"""Incidents: findings that are one event, because they are near in time and feed each other."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.common.report.trends import COURSE
from probe.monitor.alerts.course import HYPER, SCALE, STATE, TIED
from probe.monitor.alerts.experts import ROUTER
from probe.monitor.alerts.falls import FALL
from probe.monitor.alerts.families import Kind, execution_order, kind_of, module_of
from probe.monitor.alerts.ranks import NOT_REDUCED, PARTED
from probe.monitor.alerts.rows import Finding
from probe.monitor.alerts.tracks import WINDOW

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
ANY, TRAINING, SUDDEN, INSIDE = range(4)
"""Keys of `Incident.last_of`: any finding, one about the whole training, a sudden one, one inside of a module."""


@dataclass
class Incident:
    """Findings of one event, in the order of execution."""

    findings: list[Finding] = field(default_factory=list)
    last_of: dict[Hashable, int] = field(default_factory=dict)
    """By what findings have in common, the last step with one: see `_keys`."""
    changes_training: bool = False
    """True from the step in which another hyper-parameter, state or router, or exploded weights, make another model."""

    @property
    def last(self) -> int:
        """The last step with a finding."""
        return self.last_of[ANY]

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

        def within(steps: int, key: Hashable) -> bool:
            return key in self.last_of and found.step - self.last_of[key] <= steps

        if within(GAP, TRAINING) or within(WINDOW, _row_of(found)):
            return True
        # Rows that turn in one step pass one tensor on, as the output of a module that is the input of the next.
        if (found.rule, found.step) in self.last_of or (found.rule == ROUTER and found.step == self.last):
            return True
        if found.rule in _SUDDEN and within(GAP, SUDDEN):
            return True
        # A module, the one that it is directly inside of, and those directly inside of it; all are inside of the model.
        site = site_of(found)
        above = site.rpartition(".")[0]
        return within(GAP, site) or bool(above and within(GAP, above)) or bool(site and within(GAP, (INSIDE, site)))

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
        self._note(dict.fromkeys(_keys(found), found.step))
        grows = found.rule in _SUDDEN or found.rule == "drift"
        self.changes_training |= found.rule in _NAMED or (grows and kind_of(found.family) is Kind.WEIGHT)

    def join(self, other: Incident) -> None:
        """Take the findings of another incident."""
        self.findings += other.findings
        self._note(other.last_of)
        self.changes_training |= other.changes_training

    def _note(self, last_of: Mapping[Hashable, int]) -> None:
        for key, step in last_of.items():
            self.last_of[key] = max(self.last_of.get(key, step), step)


def _keys(found: Finding) -> Iterator[Hashable]:
    """Things that connect a finding with later ones: its row, its rule and step, its module, or the whole training."""
    yield ANY
    yield _row_of(found)
    yield found.rule, found.step
    is_of_training = found.family == COURSE or found.rule in (NOT_REDUCED, ROUTER, FALL)
    if is_of_training:
        yield TRAINING
    else:
        site = site_of(found)
        yield site
        yield INSIDE, site.rpartition(".")[0]
    if is_of_training or found.rule in _SUDDEN:
        yield SUDDEN


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
            first.join(other)
            found.remove(other)
        first.add(each)
    found += over
    for incident in found:
        incident.findings.sort(key=execution_order)
    return sorted(found, key=lambda each: execution_order(each.first))


def worst_of(incidents: Sequence[Incident]) -> Incident | None:
    """The incident with the largest weight, the earliest of equal ones."""
    return max(incidents, key=lambda each: each.weight, default=None)


def _row_of(found: Finding) -> tuple[int, str, str]:
    return found.rank, found.family, found.name


def site_of(found: Finding) -> str:
    """The module of a row: that of the activation, or that of the parameter."""
    is_tensor = found.family == "actv" or found.family == "actv_grad"
    return module_of(found.name) if is_tensor else found.name.rpartition(".")[0]
