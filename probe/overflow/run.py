"""Looks for what is not finite in the dumps of a run: all ranks of a step, in several processes, step by step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing

from probe.common import log
from probe.common.dump.layout import (
    DUMP_FILE,
    JOURNAL_FILE,
    folder_of,
    holds_records,
    is_without_rank,
    step_and_rank,
)
from probe.common.dump.nearest_names import nearest
from probe.common.dump.reading.dump import read
from probe.common.dump.reading.run import Run
from probe.common.dump.size import are_large
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.parallel.run import run
from probe.common.parallel.tasks import Where
from probe.common.progress import ProgressCallback
from probe.overflow.analysis import analyse
from probe.overflow.details import add_details
from probe.overflow.findings import Finding, Report, StepFindings, together
from probe.overflow.scan import RankScan, scan

MOST_DETAILED = 16
"""Findings of which values, stacks and causes are told."""


def find_overflow(
    path: str, wanted: str | None = None, where: Where | None = None, watch: ProgressCallback | None = None
) -> Report:
    """Which records made the first values that are not finite.

    Args:
        path: a dump.json or a journal, the folder of a rank or of a step, or a folder of steps.
        wanted: the name of a record that is to be explained, whatever it is.
        where: which processes read the dumps; this one by default.
        watch: called each time a dump was read.

    Raises:
        FileCheckException: there is no dump.
        DumpFormatError: a file is damaged.
        MsprobeException: a dump has no statistics, or none has the record `wanted`.
    """
    scans = _scans(folders_of(path), where or Where(1), watch)
    steps: dict[int | None, list[RankScan]] = {}
    for each in scans:
        steps.setdefault(each.step, []).append(each)
    folders = {(each.step, each.rank): each.folder for each in scans}
    report = Report(path, [_analysed(of_step, wanted) for of_step in steps.values()], folders)
    for step in report.steps:
        _add_details(report, step)
    if wanted is not None and not any(step.names(wanted) for step in report.steps):
        _check_recorded(wanted, folders.values())
    return report


def _analysed(scans: Sequence[RankScan], wanted: str | None) -> StepFindings:
    """What was found in one step. Values pass from rank to rank, and not between processes without a rank."""
    ranks = [scan for scan in scans if not scan.process]
    alone = [[scan] for scan in scans if scan.process]
    return together([analyse(group, wanted) for group in ([ranks] if ranks else []) + alone])


def _check_recorded(record: str, folders: Iterable[str]) -> None:
    """Refuse a record that is in no dump."""
    dump = None
    for folder in folders:
        dump = read(folder)
        if record in dump:
            return
    near = nearest(record, [each.name for each in dump]) if dump is not None else []
    hint = f"; nearest names: {', '.join(near)}" if near else ""
    raise MsprobeException(f"no dump has a record {record!r}{hint}.")


def folders_of(path: str) -> list[str]:
    """The dumps at a path, in order of steps and ranks.

    Raises:
        FileCheckException: there is none.
    """
    if os.path.isfile(path):
        if not holds_records(os.path.dirname(path) or os.curdir):
            raise FileCheckException(f"{path} is no dump; give dump.json, {JOURNAL_FILE}, or the folder of a rank.")
        return [path]
    if not os.path.exists(path):
        raise FileCheckException(f"{path} does not exist.")
    return Run(path).folders


def _scans(folders: Sequence[str], where: Where, watch: ProgressCallback | None) -> list[RankScan]:
    found = []
    # A process elsewhere may run in another folder.
    paths = [os.path.abspath(folder) for folder in folders]
    tasks = list(zip(paths, _numbers(paths)))
    if where == Where() and not are_large(paths):
        where = Where(1)
    with closing(run(where, scan, tasks, watch)) as outcomes:
        for outcome in outcomes:
            log.show(outcome.logged)
            if outcome.value is None:
                raise outcome.error or AssertionError("no outcome")
            found.append(outcome.value)
    return found


def _numbers(paths: Sequence[str]) -> list[int | None]:
    """The number by which each dump of a process without a rank is known; ``None`` for ranks, and for a single process.

    A process has the same number in all steps, which is that of no rank.
    """
    known = [step_and_rank(os.path.join(folder_of(path), DUMP_FILE)) for path in paths]
    names = [os.path.basename(folder_of(path)) for path in paths]
    without_rank = [(step, name) for (step, _), name in zip(known, names) if is_without_rank(name)]
    if len(dict(without_rank)) == len(without_rank) == len({step for step, _ in known}):
        return [None] * len(paths)
    first = 1 + max((rank for _, rank in known if rank is not None), default=-1)
    numbers = {name: first + index for index, name in enumerate(dict.fromkeys(name for _, name in without_rank))}
    return [numbers.get(name) for name in names]


def _add_details(report: Report, found: StepFindings) -> None:
    by_rank: dict[int, list[Finding]] = {}
    for finding in (found.findings if found is report.found else found.first)[:MOST_DETAILED]:
        by_rank.setdefault(finding.rank, []).append(finding)
    for number, findings in by_rank.items():
        # Once values are not finite, how they grew is no question.
        before = [
            (step, folder) for (step, rank), folder in report.folders.items()
            if found is report.found and rank == number and step is not None
            and found.step is not None and step < found.step
        ]  # fmt: skip
        add_details(findings, report.folders[found.step, number], before)
