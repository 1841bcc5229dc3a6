"""``msprobe monitor report``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation, UsageError
from probe.api.commands.question import Line, Question
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.monitor.report.judging import JudgedRun
    from probe.monitor.report.two_runs import TwoRuns


class MonitorReport(Question):
    """Name the row that began, in the files of a training monitor: the first abnormal value in execution order.

    DIR is the output folder of a monitor, or the folder of one rank; all ranks are read. With two folders the first
    value by which the runs differ is named, too. The status is 0 if nothing is abnormal, 1 if something is, 2 if the
    files cannot be read.
    """

    name = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("paths", metavar="DIR", nargs="+", type=arguments.path, help="one folder, or two runs")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Report:
        from probe.monitor.reading.run import read_monitor
        from probe.monitor.report.judging import judge_run
        from probe.monitor.report.two_runs import compare_runs

        if len(args.paths) > 2:
            raise UsageError(f"{len(args.paths)} folders are given; allowed: 1 or 2")
        runs = [read_monitor(path) for path in args.paths]
        judged = [judge_run(run, watch) for run in runs]
        return Report(judged, compare_runs(*runs) if len(runs) == 2 else None)


@dataclass(frozen=True)
class Report:
    """One judged run, or two and their first difference."""

    judged: list[JudgedRun]
    difference: Optional[TwoRuns]  # noqa: UP045 (evaluated, on Python 3.9 too)

    @property
    def found(self) -> bool:
        parted = self.difference is not None and self.difference.first is not None
        return parted or any(each.findings for each in self.judged)

    def lines(self) -> Iterator[Line]:
        from probe.monitor.report import text

        if self.difference is None:
            lines = text.run_lines(self.judged[0])
        else:
            first, second = self.judged
            lines = text.two_runs_lines(first, second, self.difference)
        yield from (Line(*each) for each in lines)

    def as_json(self) -> dict[str, Any]:
        found = self.judged[0].as_json()
        if self.difference is not None:
            found["other"] = self.judged[1].as_json()
            found.update(self.difference.as_json())
        return found
