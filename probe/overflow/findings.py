"""Findings of an overflow analysis, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

ORIGIN = "origin"
OUTSIDE = "outside"
PARAMETER = "parameter"
COMMUNICATION = "communication"
UNINITIALISED = "uninitialised"
INTENDED = "intended"
PROPAGATED = "propagated"
INSIDE = "inside of "
"""The beginning of a finding's source if a call that is not recorded, inside a module, has made a value."""
KINDS = {
    ORIGIN: "made here",
    OUTSIDE: "an input is not finite, and no earlier record made it",
    PARAMETER: "a parameter is not finite",
    COMMUNICATION: "finite values from all ranks, and a result that is not finite",
    UNINITIALISED: "memory that was never written",
    INTENDED: "not finite, and ignored by the calls that use it",
    PROPAGATED: "not finite because of an earlier record",
}
"""The kinds of findings, and what each means."""


@dataclass(eq=False)
class Finding:
    """A record of which no record before it explains why it is not finite."""

    kind: str
    rank: int
    record: str
    item: str = ""
    """The tensor of the record that is not finite."""
    is_first: bool = False
    """True if nothing that is not finite can have come to its rank before."""
    members: list[tuple[int, str]] = field(default_factory=list)
    """The calls of all ranks that are one communication, its own one too."""
    source: str = ""
    """The known origin of the value: the rank, the memory, the mask."""
    sentence: str = ""
    """One sentence of explanation."""
    module: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    stack: list[str] = field(default_factory=list)
    """Innermost line first."""
    values: list[dict[str, Any]] = field(default_factory=list)
    """The tensors of the record: name, type, shape, extremes."""
    forward: list[dict[str, Any]] = field(default_factory=list)
    """The tensors of the forward call, if the record is a backward."""
    around: list[str] = field(default_factory=list)
    """The modules around the record, innermost first."""
    path: list[tuple[int, str]] = field(default_factory=list)
    """The records that are not finite because of it, in order, the first of them."""
    growth: list[dict[str, Any]] = field(default_factory=list)
    """The largest absolute value and the norm of its inputs in the steps before."""
    replay: str = ""
    """The dump from which ``msprobe replay`` can run the record again; empty where that cannot be."""
    brought_back: list[str] = field(default_factory=list)
    """The forward calls whose values had no consequence in the forward, and have one in this backward."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The record as it stands in its file."""

    @property
    def key(self) -> tuple[int, str]:
        """Rank and record."""
        return self.rank, self.record


@dataclass
class Explanation:
    """The reason why a record that was asked for is not finite."""

    rank: int
    record: str
    item: str
    """The first tensor of the record that is not finite."""
    causes: list[tuple[int, str]]
    """The findings that had reached its rank before; none where it is one itself."""


@dataclass
class StepFindings:
    """The findings in one step."""

    step: Optional[int]  # noqa: UP045 (evaluated, on Python 3.9 too)
    findings: list[Finding] = field(default_factory=list)
    """The first ones first."""
    affected: dict[int, int] = field(default_factory=dict)
    """The number of records of each rank that are not finite."""
    records: dict[int, int] = field(default_factory=dict)
    """The number of records of each rank."""
    notes: list[str] = field(default_factory=list)
    """The reasons why the answer is less certain, and values that nearly overflow."""
    explained: list[Explanation] = field(default_factory=list)
    """The record that was asked for, on each rank where it is not finite."""
    intended: list[tuple[int, str]] = field(default_factory=list)
    uninitialised: list[tuple[int, str]] = field(default_factory=list)
    meant: Counter[str] = field(default_factory=Counter)
    """The number of outputs of functions that have ``-inf``, ``inf`` or ``NaN`` and are no finding."""
    processes: dict[int, str] = field(default_factory=dict)
    """``proc123`` for each process without a rank whose number stands in the place of one."""
    mode: str = ""
    """``graph`` or ``pynative``, where MindSpore wrote the step in parts."""
    folders: dict[int, str] = field(default_factory=dict)
    """The folder of each rank's dump."""

    @property
    def name(self) -> str:
        """``step 3``, or ``graph step 3``; empty where no folder says so."""
        return "" if self.step is None else " ".join(filter(None, (self.mode, f"step {self.step}")))

    def name_of(self, rank: int) -> str:
        """``rank 3``, or ``proc123`` of a process without a rank."""
        return self.processes.get(rank, f"rank {rank}")

    @property
    def first(self) -> list[Finding]:
        """The findings that nothing else can have caused."""
        return [finding for finding in self.findings if finding.is_first]

    def names(self, record: str) -> bool:
        """True if a record of this name was not finite on a rank, meant or not."""
        listed = (*self.intended, *self.uninitialised)
        return any(each.record == record for each in self.explained) or any(name == record for _, name in listed)


def together(parts: Sequence[StepFindings]) -> StepFindings:
    """The findings in a step, over processes that have nothing to do with each other."""
    if len(parts) == 1:
        return parts[0]
    first = [finding for part in parts for finding in part.first]
    return StepFindings(
        parts[0].step,
        [*first, *(finding for part in parts for finding in part.findings if not finding.is_first)],
        {rank: count for part in parts for rank, count in part.affected.items()},
        {rank: count for part in parts for rank, count in part.records.items()},
        list(dict.fromkeys(note for part in parts for note in part.notes)),
        [each for part in parts for each in part.explained],
        [each for part in parts for each in part.intended],
        [each for part in parts for each in part.uninitialised],
        sum((part.meant for part in parts), Counter()),
        {rank: name for part in parts for rank, name in part.processes.items()},
    )


@dataclass
class Report:
    """The findings in all steps of a run."""

    path: str
    steps: list[StepFindings]
    is_limited: bool = False
    """True if the configuration of the run named the steps to collect."""

    @property
    def folders(self) -> list[str]:
        """The folder of each dump, step by step."""
        return [folder for step in self.steps for folder in step.folders.values()]

    @property
    def found(self) -> StepFindings | None:
        """The first step with findings; ``None`` where all values are finite."""
        return next((step for step in self.steps if step.findings), None)

    @property
    def findings(self) -> list[Finding]:
        """The findings of the first step that has some."""
        return [] if self.found is None else self.found.findings

    @property
    def first(self) -> list[Finding]:
        """The findings that nothing else can have caused."""
        return [] if self.found is None else self.found.first
