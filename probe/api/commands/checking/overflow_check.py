"""``msprobe overflow_check``."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.common import files
from probe.common.errors import MsprobeException
from probe.common.terminal_text import print_text

if TYPE_CHECKING:
    from probe.overflow.findings import Report

_OUTPUT = "./output"
_CLEAN, _FAILED, _FOUND = 0, 1, 3
_MOST_RANKS_SHOWN = 4
"""In the page."""


class OverflowCheck:
    """Find the record that made the first NaN or infinity, over all ranks and steps.

    PATH is dump.json, a journal of a run that died, the folder of a rank or of a step, or a folder of steps. The status
    is 0 where all values are finite, 3 where some are not, 1 where the dumps cannot be read, 2 for a wrong command.
    """

    name = "overflow_check"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-i", "--input_path", metavar="PATH", type=arguments.path, required=True, help="what was collected")
        add(
            "-o",
            "--output_path",
            metavar="DIR",
            type=arguments.path,
            default=_OUTPUT,
            help=f"for the report and the page, where something is found ({_OUTPUT})",
        )
        add("--explain", metavar="RECORD", help="say of this record why it is not finite, and write no files")
        add("--no_page", action="store_true", help="write no page, which takes as long as reading the dumps again")
        several = parser.add_mutually_exclusive_group()
        several.add_argument("--jobs", metavar="N", type=arguments.processes, help="how many processes read dumps")
        several.add_argument("--dask", metavar="ADDRESS", help="the same on the dask cluster of this scheduler")
        add("--json", action="store_true", help="print the report as JSON")

    def run(self, args: argparse.Namespace) -> int:
        from probe.common.dump.reading.runs import find_dumps

        # Up to here mistakes are those of the command line, which has a status of its own.
        find_dumps(args.input_path)
        try:
            return self._check(args)
        except (MsprobeException, OSError) as error:
            print_text(f"msprobe {self.name}: {error}", sys.stderr)
            return _FAILED

    def _check(self, args: argparse.Namespace) -> int:
        from probe.common.parallel.tasks import Where
        from probe.common.report.progress_bar import Progress
        from probe.overflow import report as texts
        from probe.overflow.run import find_overflow

        # Before the work, which would be lost.
        if args.explain is None:
            files.make_folder(args.output_path)
        quiet = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
        with quiet, Progress(not args.json) as progress:
            report = find_overflow(args.input_path, args.explain, Where(args.jobs, args.dask), progress.watch)
            written = [] if args.explain is not None else _write(report, args)
        if args.json:
            print(json.dumps({**texts.as_json(report), "files": written}, allow_nan=False, indent=1))
        else:
            found = texts.lines(report) if args.explain is None else texts.explanation(report, args.explain)
            for text in [*found, *written]:
                print_text(text)
        return _CLEAN if report.found is None else _FOUND


def _write(report: Report, args: argparse.Namespace) -> list[str]:
    """The files of a report that found something."""
    if report.found is None:
        return []
    from probe.overflow.report_files import write

    written = write(report, args.output_path)
    try:
        return written + ([] if args.no_page else _page(report, args.output_path))
    except (MsprobeException, OSError) as error:
        # The answer is there without it.
        print_text(f"msprobe {OverflowCheck.name}: the page is not written: {error}", sys.stderr)
        return written


def _page(report: Report, output: str) -> list[str]:
    """The graph of the step: the ranks that have the first findings, and others as far as there is room."""
    from probe.graph.options import GraphOptions
    from probe.graph.run import planned, show

    assert report.found is not None
    first = {finding.rank for finding in report.first}
    of_step = report.found.folders
    # The page opens with the first of them.
    ranks = sorted(of_step, key=lambda rank: (rank not in first, rank))
    folders = [of_step[rank] for rank in ranks[:_MOST_RANKS_SHOWN]]
    return show(planned(folders, (), GraphOptions(overflow=True)), output, ["html"]).files
