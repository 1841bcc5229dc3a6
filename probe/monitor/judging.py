"""The rules over the files of a run: all findings, the row that began, its sources, the ranks that followed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Optional

import numpy as np

from probe.common.progress import ProgressCallback
from probe.common.report.trends import (
    ACTIVATION,
    ACTIVATION_GRADIENT,
    BEFORE,
    COURSE,
    GRADIENT_DIRECTION,
    REDUCED,
    START,
    UNREDUCED,
)
from probe.monitor.alerts.actions import LearnedRules
from probe.monitor.alerts.health import ROUTER
from probe.monitor.alerts.history import FALL, HYPER, SCALE, STATE, TIED
from probe.monitor.alerts.ranks import NOT_REDUCED, PARTED, RankRules
from probe.monitor.alerts.rows import FamilyRows, Finding, Floats, Kind, execution_order, kind_of, module_of
from probe.monitor.alerts.tracks import WINDOW, size_of
from probe.monitor.monitor_run import MonitorRun


class Part(NamedTuple):
    """A kind of rows."""

    title: str
    what: str
    """The things that have rows: modules, or parameters."""
    families: tuple[str, ...]
    keys: str
    """Keys of both monitors that collect it."""
    faults: str


_PARTS = (
    Part("activations", "module", (ACTIVATION,), "xy_distribution, module", "the module that began"),
    Part("gradients of activations", "module", (ACTIVATION_GRADIENT,), "xy_distribution, module",
          "a backward pass that goes wrong"),
    Part("weight gradients", "parameter", (REDUCED, UNREDUCED, GRADIENT_DIRECTION), "wg_distribution, weight_grad",
          "gradients that explode, vanish or are not reduced"),
    Part("optimizer state", "parameter", (), "mv_distribution, optimizer", "a state that is wrong"),
    Part("weights", "parameter", (BEFORE, "param_updated"), "param_distribution, param",
          "weights that stay the same, jump, or part between ranks"),
    Part("settings", "number", (COURSE,), "written by probe",
          "hyper-parameters that change, a loss scale that collapses, tied weights that part"),
)  # fmt: skip


class Watched(NamedTuple):
    """A kind of rows in a run."""

    part: Part
    number: int
    """Modules, parameters or numbers; 0 if the run has no such rows."""
    statistics: tuple[str, ...]


def watched_in(run: MonitorRun) -> list[Watched]:
    """Every kind of rows, those that the run does not have as well."""
    names: dict[str, set[tuple[int, str]]] = {each.title: set() for each in _PARTS}
    statistics: dict[str, dict[str, None]] = {each.title: {} for each in _PARTS}
    for columns in (each for families in run.of_rank.values() for each in families.values()):
        part = next((each for each in _PARTS if columns.family in each.families), None)
        if part is None and kind_of(columns.family) is Kind.STATE and columns.family != START:
            part = _PARTS[3]
        if part is None:
            continue
        found = set(zip(columns.stage, columns.name))
        names[part.title] |= {(at, module_of(name)) for at, name in found} if part.what == "module" else found
        statistics[part.title].update(dict.fromkeys(columns.statistics if part.what != "number" else ()))
    return [Watched(each, len(names[each.title]), tuple(statistics[each.title])) for each in _PARTS]


def coverage_lines(watched: list[Watched]) -> Iterator[str]:
    """Lines on what was watched, such as ``activations (12 modules: norm, mean)``, and on what was not."""
    texts = []
    for part, number, statistics in watched:
        things = f"{number} {part.what}{'' if number == 1 else 's'}"
        if number:
            texts.append(f"{part.title} ({things}{': ' if statistics else ''}{', '.join(statistics)})")
    yield "  watched: " + "; ".join(texts)
    for part, number, _ in watched:
        if not number:
            yield f"  not watched: {part.title} ({part.keys}); it cannot show {part.faults}"


def coverage_json(watched: list[Watched]) -> dict[str, Any]:
    """Kinds of rows that were watched, and that were not, as ``--json`` has it."""
    return {
        "watched": [
            {"rows": part.title, f"{part.what}s": number, "statistics": list(statistics)}
            for part, number, statistics in watched if number
        ],
        "not_watched": [
            {"rows": part.title, "keys": part.keys, "faults": part.faults} for part, number, _ in watched if not number
        ],
    }  # fmt: skip


# --- incidents


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


# --- judging


_MOST_FEEDING = 6
"""Sources of a row that the text lists; a guess."""


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
