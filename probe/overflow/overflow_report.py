"""A report of `overflow_check`: lines for a terminal, plain data, and the files."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import Any, Optional

from probe.common import files
from probe.common.config.fields import numbers_text
from probe.common.dump.stack_text import short_frame, users_line

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


# --- overflow report


_MOST_SHOWN = 8
"""Findings that are printed; a guess."""


def lines(report: Report) -> Iterator[str]:
    """The printed lines: the answer first."""
    found = report.found
    if found is None:
        meant = list(_meant(report.steps))
        answer = f"no fault: {'; '.join(meant)}; all other values are finite" if meant else "all values are finite"
        yield f"{report.path}: {answer}{_in_all(report.steps)}."
        yield from _not_collected(report)
        yield from _notes_of_all(report.steps, "They come from" if meant else _IGNORED)
        return
    where = f"{found.name}, " if found.name else ""
    yield from (f"{where}{_title(finding, found)}" for finding in found.first[:1])
    for number, finding in enumerate(found.first[:_MOST_SHOWN]):
        if number:
            yield _title(finding, found)
        yield from (f"  {text}" for text in _finding_lines(finding))
    if len(found.first) > _MOST_SHOWN:
        yield f"{len(found.first) - _MOST_SHOWN} more first findings are in overflow_report.json."
    yield f"Records that are not finite: {_affected(found)}."
    further = [finding for finding in found.findings if not finding.is_first]
    for finding in further[:_MOST_SHOWN]:
        yield f"Later finding, on a rank that already had such values: {_title(finding, found)}"
    later = [step.name.replace("step ", "") for step in report.steps if step.findings and step is not found]
    if later:
        yield f"Later steps with findings: {', '.join(later[:20])}{' ...' if len(later) > 20 else ''}."
    if found.first[0].kind in (PARAMETER, OUTSIDE):
        yield from _not_collected(report)
    yield from _notes(found)


_MEANT = {"-inf": "meant as masks", "inf": "of which nothing comes", "NaN": "which later calls leave out"}


def _meant(steps: Sequence[StepFindings]) -> Iterator[str]:
    """Parts of a sentence on values that are not finite without being a fault."""
    total = sum((step.meant for step in steps), Counter[str]())
    for value, why in _MEANT.items():
        if total[value]:
            yield f"{_counted(total[value], 'output')} {'has' if total[value] == 1 else 'have'} {value}, {why}"


def _not_collected(report: Report) -> Iterator[str]:
    """The steps that were collected, if the program may have run others: the fault may be there."""
    numbers = sorted({step.step for step in report.steps if step.step is not None})
    if numbers and (report.is_limited or numbers[-1] >= len(numbers)):
        several = "s" if len(numbers) > 1 else ""
        yield (
            f"Only step{several} {numbers_text(numbers)} {'were' if several else 'was'} collected, and the fault may "
            "lie in another one; `--task overflow_check` watches all steps."
        )


def explanation(report: Report, record: str) -> Iterator[str]:
    """The reason why a record is not finite."""
    anywhere = False
    for step in report.steps:
        where = f"{step.name}, " if step.name else ""
        for each in step.explained:
            anywhere = True
            yield f"{where}{_explained(each, step)}"
        meant = [rank for rank, name in step.intended if name == record]
        for name in map(step.name_of, meant):
            anywhere = True
            yield f"{where}{name}: {record} makes a value that is not finite, and the calls that use it ignore it."
        for rank in [rank for rank, name in step.uninitialised if name == record]:
            anywhere = True
            yield f"{where}{step.name_of(rank)}: {record} returns memory that was never written."
    if not anywhere:
        yield f"{report.path}: {record} is finite, or the calls that use its other values ignore them."


def _explained(each: Explanation, step: StepFindings) -> str:
    own = next((finding for finding in step.findings if finding.key == (each.rank, each.record)), None)
    if own is None:
        own = next((one for one in step.findings if (each.rank, each.record) in one.members), None)
    if own is not None:
        return f"{_title(own, step)} {own.sentence}"
    name = step.name_of(each.rank)
    if not each.causes:
        return f"{name}: {each.item} is not finite; a later record of the file made it."
    causes = ", ".join(f"{record} of {step.name_of(rank)}" for rank, record in each.causes[:3])
    return f"{name}: {each.item} is not finite; it comes from {causes}."


def _title(finding: Finding, step: StepFindings) -> str:
    ranks = sorted({rank for rank, _ in finding.members}) or [finding.rank]
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    whose = f"ranks {shown}" if len(ranks) > 1 else step.name_of(ranks[0])
    return f"{whose}: {finding.record} ({finding.kind}: {KINDS[finding.kind]})"


def _finding_lines(finding: Finding) -> Iterator[str]:
    """The labelled lines of a finding."""
    grown = ", ".join(f"step {each['step']}: {_short(each['largest'])}" for each in finding.growth)
    labelled: list[tuple[str, Sequence[str]]] = [
        ("cause:", [finding.sentence]),
        ("module:", [finding.module or ""] if finding.module != finding.record else []),
        ("line:", [short_frame(users_line(finding.stack))] if finding.stack else []),
        ("values:", list(map(_value, finding.values))),
        ("forward:", list(map(_value, finding.forward))),
        ("before:", [f"largest absolute input in earlier steps: {grown}"] if grown else []),
        ("spread:", [", ".join(_steps_of(finding))]),
        ("next:", [f"msprobe replay {quote(finding.replay)} {quote(finding.record)}"] if finding.replay else []),
    ]
    for label, texts in labelled:
        for number, text in enumerate(filter(None, texts)):
            yield f"{'' if number else label:8} {text}"


def _steps_of(finding: Finding) -> list[str]:
    shown = finding.path[:4]
    return [f"{record}{'' if rank == finding.rank else f' of rank {rank}'}" for rank, record in shown]


def _value(value: dict[str, Any]) -> str:
    shape = "x".join(map(str, value["shape"])) or "scalar"
    excluded, elements = value.get("excluded"), math.prod(value["shape"])
    count = f", {excluded} of {elements} elements not finite or beyond 2^100" if excluded else ""
    return f"{value['name']}: {value['dtype']} {shape}, min {_short(value['min'])}, max {_short(value['max'])}{count}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if type(value) is float else "unknown" if value is None else str(value)


def _affected(found: StepFindings) -> str:
    several = [
        f"{count} of {found.records[rank]} records on {found.name_of(rank)}"
        for rank, count in sorted(found.affected.items())
        if count
    ]  # fmt: skip
    return "; ".join(several[:_MOST_SHOWN]) + (f"; and on {len(several) - 8} more ranks" if len(several) > 8 else "")


def _in_all(steps: Sequence[StepFindings]) -> str:
    ranks = {rank for step in steps for rank in step.records}
    what = "process" if any(step.processes for step in steps) else "rank"
    records = sum(count for step in steps for count in step.records.values())
    # A step of MindSpore may be there in two modes.
    numbers = {step.step for step in steps}
    return f" in {records} records of {_counted(len(ranks), what)} and {_counted(len(numbers), 'step')}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 'es' if what.endswith('s') else 's'}"


def _notes_of_all(steps: Sequence[StepFindings], of_meant: str) -> Iterator[str]:
    """The notes of steps without a finding, each once, with its steps if it does not belong to all of them."""
    noted: dict[str, list[StepFindings]] = {}
    for step in steps:
        for note in _notes(step, of_meant):
            noted.setdefault(note, []).append(step)
    for note, of in noted.items():
        names = [] if len(of) == len(steps) else [step.name for step in of if step.name]
        shown = ", ".join(names[:_MOST_SHOWN]) + (" ..." if len(names) > _MOST_SHOWN else "")
        yield f"{shown}: {note}" if shown else note


_IGNORED = "Not finite, and ignored by the calls that use it:"


def _notes(step: StepFindings, of_meant: str = _IGNORED) -> Iterator[str]:
    if step.intended:
        rank, record = step.intended[0]
        more = "" if len(step.intended) == 1 else f", and {len(step.intended) - 1} more"
        of_rank = step.name_of(rank)
        yield f"{of_meant} {record} of {of_rank}{more}."
    yield from step.notes


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain data; numbers that JSON lacks are texts."""
    return {"format": 1, "path": report.path, "steps": [_step_as_json(step) for step in report.steps]}


def _step_as_json(step: StepFindings) -> dict[str, Any]:
    return {
        "step": step.step,
        **({"mode": step.mode} if step.mode else {}),
        "findings": [_finding_as_json(finding) for finding in step.findings],
        "affected": {str(rank): count for rank, count in step.affected.items()},
        "records": {str(rank): count for rank, count in step.records.items()},
        "intended": step.intended,
        "uninitialised": step.uninitialised,
        "explained": [asdict(each) for each in step.explained],
        "notes": step.notes,
        **({"processes": {str(rank): name for rank, name in step.processes.items()}} if step.processes else {}),
    }


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    found = asdict(finding)
    # Its values are told already, with numbers as JSON has them.
    del found["fields"]
    return found


# --- The files of a report

REPORT_FILE = "overflow_report.json"
WriteAnomalies = Callable[[Report, str], str]
"""Writes another tool's file of a report to a folder; returns its path."""


def write(report: Report, output: str, write_anomalies: WriteAnomalies | None = None) -> list[str]:
    """Write the report; returns the paths of all files. The folder must be there.

    Args:
        report: The report.
        output: The folder.
        write_anomalies: Writes another tool's file, where something was found.

    Raises:
        OSError: they cannot be written.
    """
    path = os.path.join(output, REPORT_FILE)
    with files.replacing(path) as stream:
        stream.write(json.dumps(as_json(report), allow_nan=False, indent=1).encode())
    if report.found is None or write_anomalies is None:
        return [path]
    return [path, write_anomalies(report, output)]
