"""The two files of a run, which grow by a case at a time, so that a run that was killed can go on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import compress
from typing import BinaryIO

from probe.common import files
from probe.common.errors import FileCheckException, MsprobeException
from probe.msprobe_rules.output import details, layout, results
from probe.msprobe_rules.output.details import SKIP, DetailsRow
from probe.msprobe_rules.output.layout import MSPROBE, PLAIN, Heading, TableLayout, TableRow
from probe.msprobe_rules.output.results import ResultRow

_RESULT = re.compile(r"accuracy_checking_result_(?P<time>\d{14})\.csv")
_TIME = "%Y%m%d%H%M%S"


@dataclass(frozen=True)
class Form:
    """What the tables of a run look like.

    Attributes:
        layout: Headings, numbers and line ends.
        mindspore: The details have the nine columns that msProbe writes for MindSpore.
        more: Headings of further columns of the details.
    """

    layout: TableLayout = PLAIN
    mindspore: bool = False
    more: tuple[str, ...] = ()

    def heading_of_details(self) -> bytes:
        """The first line of the details."""
        known = details.MINDSPORE_HEADINGS if self.mindspore else details.HEADINGS
        return self.layout.heading_line([*known, *(layout.Heading(text, text) for text in self.more)])

    def heading_of_results(self) -> bytes:
        """The first line of the results."""
        return self.layout.heading_line(results.SECOND_STAGE_HEADINGS if self.mindspore else results.HEADINGS)

    def lines(self, rows: Iterable[DetailsRow]) -> bytes:
        """Rows of the details."""
        if self.mindspore:
            return b"".join(details.mindspore_line(row, self.layout) for row in rows)
        return b"".join(details.details_line(row, self.layout, self.more) for row in rows)

    def result_line(self, row: ResultRow) -> bytes:
        """A row of the results."""
        return results.result_line(row, self.layout, four_cells=self.mindspore)


@dataclass(frozen=True)
class Resumed:
    """What is left of a run that ended early.

    Attributes:
        results: The cases that are finished, in order; they are not run again.
        details: Their rows.
    """

    results: tuple[ResultRow, ...]
    details: tuple[DetailsRow, ...]


class RunFiles:
    """``accuracy_checking_result_<time>.csv`` and ``accuracy_checking_details_<time>.csv``, open for appending.

    The rows of a case go into the details at once, and its row into the results afterwards: whatever case has a whole
    row there is finished.
    """

    def __init__(self, result_csv: str, form: Form) -> None:
        """Begin the two files, or go on with those that `resume_tables` has put right.

        Raises:
            FileCheckException: another run writes them, or they cannot be written.
        """
        self.result_csv, self.details_csv = result_csv, details_path(result_csv)
        self._form = form
        try:
            self._results = files.open_for_writing(self.result_csv, append=True)
            try:
                self._details = files.open_for_writing(self.details_csv, append=True)
            except OSError:
                self._results.close()
                raise
        except OSError as error:
            raise FileCheckException(f"{error.filename}: cannot be written: {error.strerror}.") from None
        if not files.lock(self._results):
            self.close()
            raise FileCheckException(f"{self.result_csv}: another run is writing it; wait until it has ended.")
        if not os.path.getsize(self.details_csv):
            _write(self._details, form.heading_of_details())
        if not os.path.getsize(self.result_csv):
            _write(self._results, form.heading_of_results())

    def add(self, result: ResultRow, rows: Sequence[DetailsRow]) -> None:
        """Write what is said of a case, whose outputs and gradients are `rows`."""
        if rows:
            _write(self._details, self._form.lines(rows))
        _write(self._results, self._form.result_line(result))

    def close(self) -> None:
        """Close the files; nothing of them is held back before."""
        self._details.close()
        self._results.close()


def new_result_path(folder: str, now: datetime | None = None) -> str:
    """Where the results of a run that begins now go: a name that neither of its two files has in `folder` yet.

    Raises:
        FileCheckException: the folder cannot be made.
    """
    files.make_folder(folder)
    time = now or datetime.now()
    while True:
        path = os.path.join(folder, f"accuracy_checking_result_{time.strftime(_TIME)}.csv")
        if not os.path.lexists(path) and not os.path.lexists(details_path(path)):
            return path
        time += timedelta(seconds=1)


def details_path(result_csv: str) -> str:
    """The details that belong to a file of results.

    Raises:
        MsprobeException: that is no name of a file of results.
    """
    folder, name = os.path.split(result_csv)
    found = _RESULT.fullmatch(name)
    if found is None:
        raise MsprobeException(f"{result_csv}: the name has to be accuracy_checking_result_<14 digits>.csv.")
    return os.path.join(folder, f"accuracy_checking_details_{found['time']}.csv")


def resume_tables(result_csv: str, form: Form | None = None) -> tuple[Resumed, Form]:
    """Put the two files of a run that was killed right: half rows and rows of unfinished cases are gone afterwards.

    A case is finished when its row in the results is whole and its rows in the details are too. With the first one that
    is not, everything after it counts as not finished, so that the order of the cases stays that of the dump.

    Args:
        result_csv: The file of results; its details stand beside it.
        form: What the files shall look like if not even their headings are whole; otherwise they stay as they were.

    Returns:
        What is finished, and the form in which to go on.

    Raises:
        FileCheckException: a file cannot be read or written, or another run writes it.
        MsprobeException: the files are no such tables, or damaged before their ends.
    """
    other = details_path(result_csv)
    if not os.path.isfile(result_csv):
        raise FileCheckException(f"{result_csv}: there is no such file; give the results of the run to go on with.")
    if files.in_use(result_csv):
        raise FileCheckException(f"{result_csv}: another run is writing it; wait until it has ended.")
    of_results, of_details = _Whole(result_csv), _Whole(other)
    result_rows = [results.row_of(record) for record in of_results.records(results.HEADINGS, results.NEEDED)]
    known = (*details.HEADINGS, *details.MINDSPORE_HEADINGS)
    detail_rows = [details.row_of(record) for record in of_details.records(known, details.NEEDED)]
    finished = _finished(result_rows, detail_rows, of_details.half)
    names = {row.name for row in finished}
    kept = [row.case in names for row in detail_rows]
    of_details.keep(kept)
    of_results.keep([True] * len(finished))
    rows = tuple(row for row, keep in zip(detail_rows, kept) if keep)
    return Resumed(tuple(finished), rows), _form_of(of_results, of_details, form or Form())


class _Whole:
    """The lines of a file that are whole, and the half one after them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._content = layout.read_bytes(path) if os.path.lexists(path) else b""
        self.lines = list(layout.whole_records(self._content))
        self.half = self._content[sum(map(len, self.lines)) :]

    def records(self, known: Sequence[Heading], needed: Sequence[str]) -> list[TableRow]:
        return layout.parse(self.path, b"".join(self.lines), known, needed) if self.lines else []

    def keep(self, rows: Sequence[bool]) -> None:
        """Leave the heading and those rows in the file."""
        whole = b"".join([*self.lines[:1], *compress(self.lines[1:], rows)])
        if whole != self._content:
            with files.replacing(self.path) as stream:
                stream.write(whole)


def _finished(of_results: Sequence[ResultRow], of_details: Sequence[DetailsRow], half: bytes) -> Sequence[ResultRow]:
    """The results of cases whose rows are whole, up to the first that lacks some."""
    with_rows = {row.case for row in of_details}
    last = of_details[-1].case if of_details else None
    # A half row belongs to the case that the last whole one is of, or to a later one.
    may_be_half = last is None
    for number, row in enumerate(of_results):
        may_be_half = may_be_half or row.name == last
        lacks_rows = row.name not in with_rows and SKIP not in (row.forward, row.backward)
        if lacks_rows or (half and may_be_half and _may_begin(half, row.name)):
            # Cases that were skipped may have rows, and what is lost of them is not seen.
            while number and of_results[number - 1].name not in with_rows:
                number -= 1
            return of_results[:number]
    return of_results


def _may_begin(half: bytes, case: str) -> bool:
    """True if a row that was cut anywhere may be one of a case."""
    begin = f"{case}.".encode()
    return half[: len(begin)] == begin[: len(half)]


def _form_of(of_results: _Whole, of_details: _Whole, otherwise: Form) -> Form:
    """What the headings that are whole say of the form."""
    if not of_results.lines:
        return otherwise
    form = MSPROBE if layout.is_msprobe(of_results.lines[0]) else PLAIN
    if not of_details.lines:
        return replace(otherwise, layout=form)
    found = layout.headings_of(of_details.lines[0])
    known = {text for heading in details.HEADINGS for text in (heading.plain, heading.msprobe)}
    mindspore = {heading.msprobe for heading in details.MINDSPORE_HEADINGS}
    if mindspore.issuperset(found):
        return Form(form, mindspore=True)
    return Form(form, more=tuple(text for text in found if text not in known))


def _write(stream: BinaryIO, content: bytes) -> None:
    """Write all of it; without a buffer a stream may take less."""
    left = memoryview(content)
    while left:
        left = left[stream.write(left) :]
