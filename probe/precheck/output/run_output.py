"""The files of a pre-check: the journal and tables of other rules as it runs, our own table and the JSON at the end.

Each case is written as soon as it is done, into the journal first. A run that was killed is taken up from its table of
results, or without other rules from the journal: a case that has a whole row there is done.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType

from probe.common import files
from probe.common.errors import FileCheckException, MsprobeException
from probe.precheck.options import PrecheckOptions
from probe.precheck.output.journal import Journal
from probe.precheck.output.report import Report, as_json
from probe.precheck.output.verdict_table import table_lines
from probe.precheck.result import CaseResult

_OWN_FILE = re.compile(r"(?P<stem>precheck_\d{14})\.(csv|jsonl|json)")
_TIME = "%Y%m%d%H%M%S"


class Output:
    """The results of one run, in memory only."""

    error_data: str | None = None
    """The folder for inputs and results that fail; none are written without."""

    def __init__(self) -> None:
        self.done: frozenset[str] = frozenset()
        """The names of the cases that an earlier run has finished."""
        self.from_tables = 0
        """How many of them have their statuses from the table of other rules: the journal does not have them."""
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
        FileCheckException: the folder cannot be made, or the table to go on with cannot be read.
        MsprobeException: that table is damaged before its end, or another one.
    """

    def __init__(self, folder: str, options: PrecheckOptions, framework: str) -> None:
        super().__init__()
        rules, resume = options.rules, options.resume
        self._tables = None if rules is None else rules.tables(folder, framework, resume)
        if self._tables is not None:
            self._stem = self._tables.stem
        else:
            self._stem = _new_stem(folder) if resume is None else _stem_of(resume)
        self._journal = Journal(f"{self._stem}.jsonl")
        written = self._journal.read()
        self._results = {result.name: result for result in written}
        if self._tables is not None:
            done = self._tables.done
            self.from_tables = len(done.keys() - self._results)
            self._results = {name: self._results.get(name, result) for name, result in done.items()}
        self.done = frozenset(self._results)
        stamp = self._stem.rpartition("_")[2]
        below = options.error_data
        self.error_data = None if below is None else os.path.join(below, f"ut_error_data{stamp}")

    def close(self) -> None:
        self._journal.close()
        if self._tables is not None:
            self._tables.close()

    def add(self, result: CaseResult) -> None:
        super().add(result)
        self._journal.add(result)
        if self._tables is not None:
            self._tables.add(result)

    def finish(self, report: Report) -> Report:
        # The journal, too: another run may go on from it.
        paths = [f"{self._stem}.{kind}" for kind in ("csv", "json", "jsonl")]
        report = replace(report, files=paths)
        if self._tables is not None:
            written = self._tables.finish()
            report = replace(report, files=[*paths, *written.paths], against=written.against)
        with files.replacing(paths[0]) as stream:
            stream.writelines(table_lines(report.results))
        with files.replacing(paths[1]) as stream:
            stream.write(json.dumps(as_json(report), allow_nan=False, indent=1).encode())
        return report


def _new_stem(folder: str) -> str:
    """The beginning of the names of the files of a run that begins now, which no file in `folder` has yet."""
    files.make_folder(folder)
    time = datetime.now()
    while True:
        stem = os.path.join(folder, f"precheck_{time.strftime(_TIME)}")
        if not any(os.path.lexists(f"{stem}.{kind}") for kind in ("csv", "json", "jsonl")):
            return stem
        time += timedelta(seconds=1)


def _stem_of(path: str) -> str:
    """The beginning of the names of the files of an earlier run, given one of them.

    Raises:
        MsprobeException: the name is that of another file.
        FileCheckException: the journal of that run is not there.
    """
    folder, name = os.path.split(path)
    found = _OWN_FILE.fullmatch(name)
    if found is None:
        raise MsprobeException(f"{path}: the name has to be precheck_<14 digits>.csv, .json or .jsonl.")
    stem = os.path.join(folder, found["stem"])
    if not os.path.isfile(f"{stem}.jsonl"):
        raise FileCheckException(f"{stem}.jsonl: there is no such file; a run goes on from its journal.")
    return stem
