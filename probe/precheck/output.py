"""The files of a pre-check: the journal while it runs, the drop-in tables, and at the end our own table and JSON.

Each case is written as soon as it is done, into the journal first. A run that was killed is taken up from its table of
results: cases that stand in it are done, whatever else the files hold of others is cut off.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from types import TracebackType

from probe.common import files
from probe.common.errors import FileCheckException
from probe.precheck.journal import Journal
from probe.precheck.options import PrecheckOptions
from probe.precheck.report import Report, as_json
from probe.precheck.result import CaseResult
from probe.precheck.tables.files import Tables, stamp_of
from probe.precheck.tables.layout import LAYOUTS
from probe.precheck.tables.verdicts import verdict_lines

_STAMP = "%Y%m%d%H%M%S"


class Output:
    """The files of one run.

    Raises:
        FileCheckException: the folder cannot be made, or the table to go on with is none.
    """

    def __init__(self, options: PrecheckOptions) -> None:
        if options.resume is not None:
            folder, stamp = os.path.dirname(options.resume) or os.curdir, stamp_of(options.resume)
        else:
            files.make_folder(options.output)
            folder, stamp = options.output, _new_stamp(options.output)
        self._layout = LAYOUTS[options.headers]
        self._path = os.path.join(folder, f"precheck_{stamp}")
        self._tables = Tables(folder, stamp, self._layout)
        self._journal = Journal(f"{self._path}.jsonl")
        self.done: frozenset[str] = self._tables.done() if options.resume is not None else frozenset()
        """The names of the cases that an earlier run has finished."""
        self._results = {result.name: result for result in self._journal.read() if result.name in self.done}

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close()
        self._tables.close()

    def add(self, result: CaseResult) -> None:
        """Write down one case."""
        self._results[result.name] = result
        self._journal.add(result)
        self._tables.add(result)

    def results(self, names: Iterable[str]) -> list[CaseResult]:
        """The results of these cases, as far as they are known; a table of msProbe that was gone on with has none."""
        return [self._results[name] for name in names if name in self._results]

    def finish(self, report: Report) -> list[str]:
        """Write what sums all up; returns the paths of all files."""
        self._tables.close()
        self._journal.close()
        verdicts, whole = f"{self._path}.csv", f"{self._path}.json"
        with files.replacing(verdicts) as stream:
            stream.writelines(verdict_lines(report.results, self._layout))
        paths = [verdicts, whole, *self._tables.paths]
        with files.replacing(whole) as stream:
            stream.write(json.dumps({**as_json(report), "files": paths}, allow_nan=False, indent=1).encode())
        return paths


def _new_stamp(folder: str) -> str:
    """The time, and a later one where another run has taken it."""
    now = time.time()
    for seconds in range(3600):
        stamp = time.strftime(_STAMP, time.localtime(now + seconds))
        if not any(os.path.lexists(os.path.join(folder, name.format(stamp))) for name in _NAMES):
            return stamp
    raise FileCheckException(f"{folder} has a table of each second of the coming hour; give another folder.")


_NAMES = ("precheck_{}.jsonl", "accuracy_checking_result_{}.csv")
