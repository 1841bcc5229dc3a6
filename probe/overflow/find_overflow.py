"""Looks for what is not finite in the dumps of a run: all ranks of a step, in several processes, step by step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from probe.common.dump.layout import MADE_FILES, are_large
from probe.common.dump.naming import nearest
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.runs import DumpLocation, dumps_in
from probe.common.environment.environment_file import environment_of_file
from probe.common.errors import MsprobeException
from probe.common.parallel.run_tasks import run
from probe.common.parallel.tasks import Where, results
from probe.common.progress import ProgressCallback
from probe.overflow.analysis import analyse
from probe.overflow.details import add_details
from probe.overflow.overflow_report import Finding, Report, StepFindings, together
from probe.overflow.scan import MOST_SKIPS, RankScan, scan, scan_dump

MOST_DETAILED = 16
"""Findings of which values, stacks and causes are told."""


def find_overflow(
    path: str, wanted: str | None = None, where: Where | None = None, watch: ProgressCallback | None = None
) -> Report:
    """Records that made the first values that are not finite.

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
    locations = dumps_in(path)
    scans = _scans(locations, where or Where(1), watch)
    _count_skips(scans, list(zip((each.path for each in locations), _numbers(locations))))
    steps: dict[tuple[str, int | None], list[RankScan]] = {}
    for location, each in zip(locations, scans):
        steps.setdefault((location.mode, location.step), []).append(each)
    report = Report(path, [_analysed(of_step, mode, wanted) for (mode, _), of_step in steps.items()])
    environment = environment_of_file(os.path.join(locations[0].folder, MADE_FILES[0])) or {}
    report.is_limited = bool(environment.get("steps"))
    for step in report.steps:
        _add_details(report, step)
    if wanted is not None and not any(step.names(wanted) for step in report.steps):
        _check_recorded(wanted, report.folders)
    return report


def first_in_dump(dump: Dump) -> Finding | None:
    """The first finding in one dump by itself; ``None`` if all is finite or has no consequence.

    Raises:
        DumpFormatError: a record is damaged.
        MsprobeException: the dump has no statistics.
    """
    return next(iter(analyse([scan_dump(dump)]).first), None)


def _analysed(scans: Sequence[RankScan], mode: str, wanted: str | None) -> StepFindings:
    """The findings in one step. Values pass from rank to rank, and not between processes without a rank."""
    ranks = [scan for scan in scans if not scan.process]
    alone = [[scan] for scan in scans if scan.process]
    found = together([analyse(group, wanted) for group in ([ranks] if ranks else []) + alone])
    found.mode = mode
    found.folders = {scan.rank: scan.folder for scan in scans}
    return found


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


def _scans(locations: Sequence[DumpLocation], where: Where, watch: ProgressCallback | None) -> list[RankScan]:
    paths = [each.path for each in locations]
    if where.dask is not None:
        # A process on another machine may run in another folder.
        paths = list(map(os.path.abspath, paths))
    tasks = list(zip(paths, _numbers(locations)))
    if where == Where() and not are_large(paths):
        where = Where(1)
    return list(results(tasks, run(where, scan, tasks, watch)))


def _count_skips(scans: list[RankScan], tasks: Sequence[tuple[str, int | None]]) -> None:
    """Look again at steps that a gradient scaler has skipped, if it has skipped too many in a row."""
    in_a_row: dict[int, int] = {}
    for index in sorted(range(len(scans)), key=lambda index: scans[index].step or 0):
        rank = scans[index].rank
        in_a_row[rank] = in_a_row.get(rank, 0) + 1 if scans[index].is_skipped else 0
        if in_a_row[rank] >= MOST_SKIPS:
            scans[index] = scan(tasks[index], skips_count=True)


def _numbers(locations: Sequence[DumpLocation]) -> list[int | None]:
    """The number by which each dump of a process without a rank is known; ``None`` for ranks.

    A process has the same number in all steps, which is that of no rank. A single process in each step is the same one,
    even if a program that went on has another number of its own.
    """
    steps = {(each.mode, each.step) for each in locations}
    if len(steps) == len(locations):
        return [0 if each.process else None for each in locations]
    first = 1 + max((each.rank for each in locations if each.rank is not None), default=-1)
    names = dict.fromkeys(each.process for each in locations if each.process)
    numbers = {name: first + index for index, name in enumerate(names)}
    return [numbers.get(each.process) for each in locations]


def _add_details(report: Report, found: StepFindings) -> None:
    by_rank: dict[int, list[Finding]] = {}
    for finding in (found.findings if found is report.found else found.first)[:MOST_DETAILED]:
        by_rank.setdefault(finding.rank, []).append(finding)
    for number, findings in by_rank.items():
        # Once values are not finite, how they grew is no question.
        before = [
            (step.step, step.folders[number]) for step in report.steps
            if found is report.found and number in step.folders and step.mode == found.mode
            and step.step is not None and found.step is not None and step.step < found.step
        ]  # fmt: skip
        add_details(findings, found.folders[number], before)
        # What comes back in the backward was not ignored.
        back = {(number, name) for finding in findings for name in finding.brought_back}
        found.intended = [each for each in found.intended if each not in back]
