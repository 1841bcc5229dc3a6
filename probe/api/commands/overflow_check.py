"""``msprobe overflow_check``."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question
from probe.common import files, log
from probe.common.errors import MsprobeException
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.overflow.overflow_report import Report, WriteAnomalies

_MOST_RANKS_SHOWN, _MOST_DUMPS_SHOWN = 4, 8
"""In the page, which takes as long for each as reading it did."""


class OverflowCheck(Question):
    """Find the record that made the first NaN or infinity, over all ranks and steps.

    RUN is dump.json, a journal of a run that died, the folder of a rank or of a step, or a folder of steps. The status
    is 0 if all values are finite, 1 if some are not, 2 if the dumps cannot be read or hold nothing to judge.
    """

    name = "overflow_check"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        arguments.add_run(parser, "input_path", "what was collected", "-i", "--input_path")
        add(
            "-o",
            "--output_path",
            metavar="DIR",
            type=arguments.path,
            default=arguments.OUTPUT,
            help=f"for the report and the page, where something is found ({arguments.OUTPUT})",
        )
        add("--explain", metavar="RECORD", help="give the reason why this record is not finite, and write no files")
        add("--no_page", action="store_true", help="write no page; it takes as long as reading the dumps again")
        arguments.add_where(parser, "read dumps")
        arguments.add_rules(parser, "decide on msProbe's file of anomalies; probe writes none (msprobe)")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.api.rules import rules_for
        from probe.common.parallel.tasks import Where
        from probe.overflow import overflow_report as texts
        from probe.overflow.find_overflow import find_overflow

        arguments.required(args.input_path, "RUN")
        # Before the work, which would be lost.
        write_anomalies = rules_for("anomalies", args.rules)
        if args.explain is None:
            files.make_folder(args.output_path)
        report = find_overflow(args.input_path, args.explain, Where(args.jobs, args.dask), watch)
        if not any(sum(step.records.values()) for step in report.steps):
            raise MsprobeException(f"{args.input_path} holds no records; give a folder with dumps.")
        written = [] if args.explain is not None else _write(report, args, write_anomalies)
        said = texts.lines(report) if args.explain is None else texts.explanation(report, args.explain)
        content = {**texts.as_json(report), "files": written}
        return Answer(lambda: [*said, *written], lambda: content, report.found is not None)


def _write(report: Report, args: argparse.Namespace, write_anomalies: WriteAnomalies | None) -> list[str]:
    """The files of a report that found something."""
    if report.found is None:
        return []
    from probe.overflow.overflow_report import write

    written = write(report, args.output_path, write_anomalies)
    try:
        return written + ([] if args.no_page else _page(report, args.output_path))
    except (MsprobeException, OSError) as error:
        # The answer is there without it.
        log.warning(f"the page is not written: {error}")
        return written


def _page(report: Report, output: str) -> list[str]:
    """The graph of the step: the ranks that have the first findings, others and other steps as far as there is room."""
    from probe.graph.options import GraphOptions
    from probe.graph.shown_runs import planned, show
    from probe.overflow import overflow_report as texts

    options = GraphOptions(overflow=True)
    wanted = _shown_folders(report)
    plan = planned([report.path], (), options)
    numbers = {os.path.realpath(folder): number for number, folder in enumerate(wanted)}
    tasks = [(numbers.get(_folder_of(task.location.target)), task) for task in plan.tasks]
    # The page opens with the first of them.
    shown = [task for _, task in sorted(((at, task) for at, task in tasks if at is not None), key=lambda each: each[0])]
    if len(shown) < len(wanted):
        plan = planned(wanted[:_MOST_RANKS_SHOWN], (), options)
        shown = plan.tasks
    return show(replace(plan, tasks=shown, said=list(texts.lines(report))), output, ["html"]).files


def _folder_of(path: str) -> str:
    found = os.path.realpath(path)
    return found if os.path.isdir(found) else os.path.dirname(found)


def _shown_folders(report: Report) -> list[str]:
    """The folders of the dumps on the page: the step that was found, then the nearest steps, of the same ranks.

    There are at most `_MOST_DUMPS_SHOWN` of them.
    """
    assert report.found is not None
    first = {finding.rank for finding in report.first}
    of_step = report.found.folders
    ranks = sorted(of_step, key=lambda rank: (rank not in first, rank))[:_MOST_RANKS_SHOWN]
    at = report.steps.index(report.found)
    steps = sorted(range(len(report.steps)), key=lambda number: (abs(number - at), number))
    found = [report.steps[step].folders for step in steps]
    folders = [of_rank[rank] for of_rank in found for rank in ranks if rank in of_rank]
    return list(dict.fromkeys(folders))[:_MOST_DUMPS_SHOWN]
