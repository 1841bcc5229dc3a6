"""The drop-in tables of a pre-check, written case by case: results, details, and the two of another device."""

from __future__ import annotations

import os
from collections.abc import Mapping

from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import BACKWARD, FORWARD
from probe.msprobe_rules.output.comparisons import write
from probe.msprobe_rules.output.details import ERROR, SKIP, case_and_direction, read_details
from probe.msprobe_rules.output.layout import LAYOUTS
from probe.msprobe_rules.output.results import ResultRow
from probe.msprobe_rules.output.run_files import Form, RunFiles, new_result_path, resume_tables
from probe.msprobe_rules.precheck.finished_cases import finished_cases
from probe.msprobe_rules.precheck.methods import Method
from probe.precheck.result import CaseResult
from probe.precheck.rules import AgainstDevice, WrittenTables


class DropInTables:
    """The tables of one run.

    Args:
        folder: Where they are written.
        framework: That of the dump.
        resume: A table of results whose cases are done already.
        method: By which the status of a case and the verdict on two devices are made.
        headers: What they look like.
        against: A table of details of another device.

    Raises:
        FileCheckException: the folder cannot be made, or the table to go on with cannot be read.
        MsprobeException: that table is damaged before its end, or another one.
    """

    def __init__(
        self, folder: str, framework: str, resume: str | None, method: Method, headers: str, against: str | None
    ) -> None:
        # msProbe's details of MindSpore have nine columns.
        form = Form(LAYOUTS[headers], mindspore=headers == "msprobe" and of_dump(framework).in_msprobe_mindspore)
        self._method, self._against, self._layout = method, against, LAYOUTS[headers]
        if against is not None:
            # A mistake of the user's is found before the work.
            read_details(against)
        self.done: Mapping[str, CaseResult] = {}
        if resume is None:
            path = new_result_path(folder)
        else:
            path = resume
            resumed, form = resume_tables(path, form)
            self.done = finished_cases(resumed)
        self.stem = path[: -len(".csv")].replace("accuracy_checking_result_", "precheck_")
        self._files = RunFiles(path, form)

    def add(self, result: CaseResult) -> None:
        """Write the rows of one case."""
        self._files.add(self._result_row(result), result.details)

    def finish(self) -> WrittenTables:
        """Write the verdict on two devices, where the table of another one is given."""
        self._files.close()
        paths = [self._files.result_csv, self._files.details_csv]
        if self._against is None:
            return WrittenTables(paths)
        details = self._files.details_csv
        rows, results = self._method.compare(read_details(details), read_details(self._against))
        paths += write(os.path.dirname(details) or os.curdir, rows, results, self._layout)
        worse = [row.name for row in results if ERROR in (row.forward, row.backward)]
        compared = sum(row.forward != SKIP for row in results)
        return WrittenTables(paths, AgainstDevice([vars(row) for row in results], compared, worse))

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _result_row(self, result: CaseResult) -> ResultRow:
        """A case in the table of results."""
        if result.not_run:
            return ResultRow(result.name, SKIP, SKIP, result.not_run)
        of = {
            direction: [row.status for row in result.details if case_and_direction(row.name)[1] == direction]
            for direction in (FORWARD, BACKWARD)
        }
        worst_of = self._method.worst_of
        backward = worst_of(of[BACKWARD]) if of[BACKWARD] else None
        why = result.backward_not_run
        return ResultRow(result.name, worst_of(of[FORWARD]), SKIP if why else backward, why)
