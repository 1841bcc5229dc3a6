"""The files of a pre-check: the journal and the drop-in tables as it runs, our own table and the JSON at the end.

Each case is written as soon as it is done, into the journal first. A run that was killed is taken up from its table of
results: a case that has a whole row there is done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType

from probe.common import files
from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import BACKWARD, FORWARD
from probe.precheck.options import PrecheckOptions
from probe.precheck.output.journal import Journal
from probe.precheck.output.report import Report, as_json
from probe.precheck.output.verdict_table import table_lines
from probe.precheck.result import CaseResult
from probe.precheck.standards.outputs import case_status
from probe.precheck.standards.stage2 import compare
from probe.precheck.tables.comparisons import write
from probe.precheck.tables.details import SKIP, case_and_direction, read_details
from probe.precheck.tables.layout import LAYOUTS
from probe.precheck.tables.results import ResultRow
from probe.precheck.tables.run_files import Form, RunFiles, new_result_path, resume


class Output:
    """The results of one run, in memory only."""

    error_data: str | None = None
    """The folder for inputs and results that fail; none are written without."""

    def __init__(self) -> None:
        self.done: frozenset[str] = frozenset()
        """The names of the cases that an earlier run has finished."""
        self._results: dict[str, CaseResult] = {}

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def add(self, result: CaseResult) -> None:
        """Write down one case."""
        self._results[result.name] = result

    def results(self, names: Iterable[str]) -> list[CaseResult]:
        """The results of these cases, as far as they are known; a table of msProbe that was gone on with has none."""
        return [self._results[name] for name in names if name in self._results]

    def finish(self, report: Report) -> Report:
        """Write what sums all up; returns the report with the paths of all files."""
        return report

    def close(self) -> None:
        """Close what is open."""


class OutputFiles(Output):
    """The files of one run.

    Raises:
        FileCheckException: the folder cannot be made, or the table to go on with cannot be read.
        MsprobeException: that table is damaged before its end, or another one.
    """

    def __init__(self, folder: str, options: PrecheckOptions, framework: str) -> None:
        super().__init__()
        # msProbe's details of MindSpore have nine columns.
        nine_columns = options.headers == "msprobe" and of_dump(framework).in_msprobe_mindspore
        form = Form(LAYOUTS[options.headers], mindspore=nine_columns)
        self._standard, self._against, self._layout = options.standard, options.against, LAYOUTS[options.headers]
        if self._against is not None:
            # A mistake of the user's is found before the work.
            read_details(self._against)
        if options.resume is None:
            path = new_result_path(folder)
        else:
            path = options.resume
            finished, form = resume(path, form)
            self.done = finished.finished
        self._stem = path[: -len(".csv")].replace("accuracy_checking_result_", "precheck_")
        self._journal = Journal(f"{self._stem}.jsonl")
        self._results = {result.name: result for result in self._journal.read() if result.name in self.done}
        self._tables = RunFiles(path, form)
        stamp = self._stem.rpartition("_")[2]
        below = options.error_data
        self.error_data = None if below is None else os.path.join(below, f"ut_error_data{stamp}")

    def close(self) -> None:
        self._journal.close()
        self._tables.close()

    def add(self, result: CaseResult) -> None:
        super().add(result)
        self._journal.add(result)
        self._tables.add(_result_row(result, self._standard), result.details)

    def finish(self, report: Report) -> Report:
        self._tables.close()
        paths = [f"{self._stem}.csv", f"{self._stem}.json", self._tables.result_csv, self._tables.details_csv]
        if self._against is not None:
            details = self._tables.details_csv
            rows, results = compare(read_details(details), read_details(self._against), self._standard)
            paths += write(os.path.dirname(details) or os.curdir, rows, results, self._layout)
            report = replace(report, second_stage=results)
        report = replace(report, files=paths)
        with files.replacing(paths[0]) as stream:
            stream.writelines(table_lines(report.results))
        with files.replacing(paths[1]) as stream:
            stream.write(json.dumps(as_json(report), allow_nan=False, indent=1).encode())
        return report


def _result_row(result: CaseResult, standard: str) -> ResultRow:
    """A case in the drop-in table."""
    if result.not_run:
        return ResultRow(result.name, SKIP, SKIP, result.not_run)
    of = {
        direction: [row.status for row in result.details if case_and_direction(row.name)[1] == direction]
        for direction in (FORWARD, BACKWARD)
    }
    backward = case_status(of[BACKWARD], standard) if of[BACKWARD] else None
    why = result.backward_not_run
    return ResultRow(result.name, case_status(of[FORWARD], standard), SKIP if why else backward, why)
