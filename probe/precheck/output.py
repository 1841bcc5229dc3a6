"""The files of a pre-check: the journal and the drop-in tables as it runs, our own table and the JSON at the end.

Each case is written as soon as it is done, into the journal first. A run that was killed is taken up from its table of
results: a case that has a whole row there is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import TracebackType

from probe.common import files
from probe.precheck.journal import Journal
from probe.precheck.options import PrecheckOptions
from probe.precheck.report import Report, as_json
from probe.precheck.result import CaseResult
from probe.precheck.standards import documented, release
from probe.precheck.standards.constants import RELEASE
from probe.precheck.tables.details import SKIP
from probe.precheck.tables.layout import LAYOUTS
from probe.precheck.tables.results import ResultRow
from probe.precheck.tables.run_files import Form, RunFiles, new_result_path, resume
from probe.precheck.verdict_table import table_lines


class Output:
    """The files of one run.

    Raises:
        FileCheckException: the folder cannot be made, or the table to go on with cannot be read.
        MsprobeException: that table is damaged before its end, or another one.
    """

    def __init__(self, options: PrecheckOptions) -> None:
        form = Form(LAYOUTS[options.headers])
        self._standard = options.standard
        self.done: frozenset[str] = frozenset()
        """The names of the cases that an earlier run has finished."""
        if options.resume is None:
            path = new_result_path(options.output)
        else:
            path = options.resume
            finished, form = resume(path, form)
            self.done = finished.finished
        self._stem = path[: -len(".csv")].replace("accuracy_checking_result_", "precheck_")
        self._journal = Journal(f"{self._stem}.jsonl")
        self._results = {result.name: result for result in self._journal.read() if result.name in self.done}
        self._tables = RunFiles(path, form)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._journal.close()
        self._tables.close()

    def add(self, result: CaseResult) -> None:
        """Write down one case."""
        self._results[result.name] = result
        self._journal.add(result)
        rows = [row.stage1 for row in result.rows if row.stage1 is not None]
        self._tables.add(_result_row(result, self._standard), rows)

    def results(self, names: Iterable[str]) -> list[CaseResult]:
        """The results of these cases, as far as they are known; a table of msProbe that was gone on with has none."""
        return [self._results[name] for name in names if name in self._results]

    def finish(self, report: Report) -> list[str]:
        """Write what sums all up; returns the paths of all files."""
        paths = [f"{self._stem}.csv", f"{self._stem}.json", self._tables.result_csv, self._tables.details_csv]
        with files.replacing(paths[0]) as stream:
            stream.writelines(table_lines(report.results))
        with files.replacing(paths[1]) as stream:
            stream.write(json.dumps({**as_json(report), "files": paths}, allow_nan=False, indent=1).encode())
        return paths


def _result_row(result: CaseResult, standard: str) -> ResultRow:
    """A case in the drop-in table."""
    if result.not_run:
        return ResultRow(result.name, SKIP, SKIP, result.not_run)
    worst_of = release.worst_of if standard == RELEASE else documented.worst_of
    forward = worst_of([row.stage1.status for row in result.rows if row.stage1 and not row.of])
    of_gradients = [row.stage1.status for row in result.rows if row.stage1 and row.of]
    backward = SKIP if result.backward_not_run else worst_of(of_gradients) if of_gradients else None
    return ResultRow(result.name, forward, backward, result.backward_not_run)
