"""The drop-in tables of a pre-check: results, details, and the two of another device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from probe.common import files
from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import BACKWARD, FORWARD
from probe.msprobe_rules.output.comparisons import write
from probe.msprobe_rules.output.details import ERROR, SKIP, DetailsRow, case_and_direction, read_details
from probe.msprobe_rules.output.form import Form, table_paths
from probe.msprobe_rules.output.layout import LAYOUTS
from probe.msprobe_rules.output.results import ResultRow
from probe.msprobe_rules.precheck.methods import Method
from probe.precheck.case_results import CaseResult
from probe.precheck.rules import AgainstDevice, WrittenTables


class DropInTables:
    """The tables of one run, which have headings at once, because scripts look for their names, and rows at the end.

    Args:
        folder: Where they are written.
        time: The time in their names.
        framework: That of the dump.
        method: By which the status of a case and the verdict on two devices are made.
        headers: What they look like.
        against: A table of details of another device.

    Raises:
        FileCheckException: the table of the other device cannot be read.
        MsprobeException: that table is damaged, or another one.
    """

    def __init__(
        self, folder: str, time: str, framework: str, method: Method, headers: str, against: str | None
    ) -> None:
        # msProbe's details of MindSpore have nine columns.
        mindspore = headers == "msprobe" and of_dump(framework).in_msprobe_mindspore
        self._form = Form(LAYOUTS[headers], mindspore=mindspore)
        self._method, self._against = method, against
        if against is not None:
            # A mistake of the user's is found before the work.
            read_details(against)
        self._result_csv, self._details_csv = table_paths(folder, time)
        if not os.path.lexists(self._result_csv):
            self._write(())

    def write(self, results: Sequence[CaseResult]) -> WrittenTables:
        """Write the rows of all cases, and the verdict on two devices, if the table of another one is given."""
        self._write(results)
        paths = [self._result_csv, self._details_csv]
        if self._against is None:
            return WrittenTables(paths)
        compared_rows, cases = self._method.compare(read_details(self._details_csv), read_details(self._against))
        paths += write(os.path.dirname(self._details_csv) or os.curdir, compared_rows, cases, self._form.layout)
        worse = [row.name for row in cases if ERROR in (row.forward, row.backward)]
        compared = sum(row.forward != SKIP for row in cases)
        return WrittenTables(paths, AgainstDevice([vars(row) for row in cases], compared, worse))

    def _write(self, results: Sequence[CaseResult]) -> None:
        form = self._form
        lines = [form.heading_of_results()]
        with files.replacing(self._details_csv) as stream:
            stream.write(form.heading_of_details())
            for result in results:
                rows = [_details_row(fields) for fields in result.details or ()]
                stream.write(form.lines(rows))
                lines.append(form.result_line(self._result_row(result, rows)))
        with files.replacing(self._result_csv) as stream:
            stream.writelines(lines)

    def _result_row(self, result: CaseResult, rows: Sequence[DetailsRow]) -> ResultRow:
        """A case in the table of results."""
        if result.not_run:
            return ResultRow(result.name, SKIP, SKIP, result.not_run)
        of = {
            direction: [row.status for row in rows if case_and_direction(row.name)[1] == direction]
            for direction in (FORWARD, BACKWARD)
        }
        worst_of = self._method.worst_of
        backward = worst_of(of[BACKWARD]) if of[BACKWARD] else None
        why = result.backward_not_run
        return ResultRow(result.name, worst_of(of[FORWARD]), SKIP if why else backward, why)


def _details_row(fields: Mapping[str, Any]) -> DetailsRow:
    shape = fields["shape"]
    return DetailsRow(**{**fields, "shape": None if shape is None else tuple(shape)})
