"""The files of a pre-check: the journal as it runs; our own table, those of other rules and the JSON at the end.

Each case is written into the journal as soon as it is done. A run that was killed goes on from the journal: a case that
has a whole line there is done.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType

from probe.calls.judged_results import JudgedResult
from probe.common import files
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.report.csv_lines import Cell, csv_line
from probe.precheck.case_results import CaseResult
from probe.precheck.options import PrecheckOptions
from probe.precheck.report import Journal, Report, RunSettings, as_json

_FILE_OF_A_RUN = re.compile(r"\w+_(?P<time>\d{14})\.(csv|jsonl|json)")
_TIME = "%Y%m%d%H%M%S"


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
        """The results of these cases."""
        return [self._results[name] for name in names if name in self._results]

    def finish(self, report: Report) -> Report:
        """Write what sums all up; returns the report with the paths of all files."""
        return report

    def close(self) -> None:
        """Close what is open."""


class OutputFiles(Output):
    """The files of one run.

    Raises:
        FileCheckException: the folder cannot be made, or the journal to go on with cannot be read.
        MsprobeException: the file to go on with has a name that no file of a run has, or is of a run with other
            settings.
    """

    def __init__(self, folder: str, options: PrecheckOptions, framework: str, settings: RunSettings) -> None:
        super().__init__()
        rules, resume = options.rules, options.resume
        folder, time = _new_run(folder) if resume is None else _earlier_run(resume)
        self._stem = _stem(folder, time)
        self._journal = Journal(f"{self._stem}.jsonl")
        try:
            begun, written = self._journal.read()
            # Before the tables are touched: they stay those of the run that this one does not go on with.
            continued = settings if begun is None else self._continued(begun, settings)
            self._tables = None if rules is None else rules.tables(folder, time, framework)
            if continued != begun:
                self._journal.begin(continued)
        except BaseException:
            self._journal.give_up()
            raise
        # A case that no other rules have judged is done only where there are none.
        self._results = {each.name: each for each in written if rules is None or each.details is not None}
        self.done = frozenset(self._results)
        below = options.error_data
        self.error_data = None if below is None else os.path.join(below, f"ut_error_data{time}")

    def _continued(self, begun: RunSettings, now: RunSettings) -> RunSettings:
        try:
            return begun.continued_by(now)
        except MsprobeException as error:
            raise MsprobeException(f"{self._journal.path}: {error}") from None

    def close(self) -> None:
        self._journal.close()

    def add(self, result: CaseResult) -> None:
        super().add(result)
        self._journal.add(result)

    def finish(self, report: Report) -> Report:
        # The journal, too: another run may go on from it.
        paths = [f"{self._stem}.{kind}" for kind in ("csv", "json", "jsonl")]
        report = replace(report, files=paths)
        if self._tables is not None:
            written = self._tables.write(report.results)
            report = replace(report, files=[*paths, *written.paths], against=written.against)
        with files.replacing(paths[0]) as stream:
            stream.writelines(table_lines(report.results))
        with files.replacing(paths[1]) as stream:
            stream.write(json.dumps(as_json(report), allow_nan=False, indent=1).encode())
        return report


def _stem(folder: str, time: str) -> str:
    return os.path.join(folder, f"precheck_{time}")


def _new_run(folder: str) -> tuple[str, str]:
    """The folder of a run that begins now, and its time, which no file there has in its name yet."""
    files.make_folder(folder)
    taken = {found["time"] for found in map(_FILE_OF_A_RUN.fullmatch, os.listdir(folder)) if found}
    now = datetime.now()
    while now.strftime(_TIME) in taken:
        now += timedelta(seconds=1)
    return folder, now.strftime(_TIME)


def _earlier_run(path: str) -> tuple[str, str]:
    """The folder and the time of an earlier run, given one of its files, which need not be there.

    Raises:
        MsprobeException: the name is that of another file.
        FileCheckException: the journal of that run is not there.
    """
    folder, name = os.path.split(path)
    found = _FILE_OF_A_RUN.fullmatch(name)
    if found is None:
        raise MsprobeException(
            f"{path} is no file of an earlier run; allowed: a name with _<14 digits> before .csv, .jsonl or .json."
        )
    journal = f"{_stem(folder, found['time'])}.jsonl"
    if not os.path.isfile(journal):
        raise FileCheckException(
            f"{journal}: there is no such file; a run goes on from its journal. msProbe writes none: "
            "check the dump of such a run again as a whole, without -csv_path."
        )
    return folder, found["time"]


# --- our own table

_HEADINGS = (
    "Name", "Gradient of", "Dtype", "Reference dtype", "Shape", "Verdict", "Error / tolerance", "Tolerance", "Bound",
    "Worst element", "Result", "Reference", "Max ULP", "Mean ULP", "Share over tolerance", "Fits", "Interpretation",
    "Inputs", "Autocast", "Stands for",
)  # fmt: skip


def table_lines(results: Iterable[CaseResult]) -> Iterator[bytes]:
    """The table as lines of CSV, in the order of the cases; one that was not run is a row with the reason."""
    yield csv_line(_HEADINGS)
    for result in results:
        yield from (csv_line(cells) for cells in _rows(result))


def _rows(result: CaseResult) -> Iterator[list[Cell]]:
    behind: list[Cell] = [result.inputs, result.autocast, result.stands_for]
    if result.not_run:
        yield _reason(f"{result.name}.forward", result.not_run, behind)
        return
    for row in result.rows:
        yield [*_cells(row), *behind]
    if result.backward_not_run:
        yield _reason(f"{result.name}.backward", result.backward_not_run, behind)


def _reason(name: str, reason: str, behind: list[Cell]) -> list[Cell]:
    cells: list[Cell] = [name, *[None] * (len(_HEADINGS) - 1 - len(behind)), *behind]
    cells[_HEADINGS.index("Verdict")] = "not run"
    cells[_HEADINGS.index("Interpretation")] = reason
    return cells


def _cells(row: JudgedResult) -> list[Cell]:
    found = row.verdict
    index = None if found.worst_index is None else str(list(found.worst_index))
    worst = (_number(found.worst_result), _number(found.worst_reference))
    return [
        row.name, row.of or None, row.dtype, row.reference_dtype, str(list(row.shape)), found.status, found.ratio,
        found.tolerance, found.bound, index, *worst, found.max_ulp, found.mean_ulp, found.share_over, found.fits,
        found.interpretation,
    ]  # fmt: skip


def _number(value: complex | None) -> Cell:
    return str(value) if isinstance(value, (bool, complex)) else value
