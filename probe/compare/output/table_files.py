"""Tables as files: CSV, or a workbook where one is asked for. Long ones are parted, as spreadsheets need it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from probe.common import files
from probe.common.align.row import ERROR, WARNING
from probe.common.report import xlsx
from probe.common.report.cells import Cells
from probe.common.report.csv_lines import csv_text
from probe.compare.output import tables
from probe.compare.result import ComparisonResult

CSV_ROWS = 1_000_000
SHEET_ROWS = 1_048_500


def write_csv(result: ComparisonResult, stem: str) -> list[str]:
    """Write ``<stem>.csv``, or ``<stem>_part_1.csv`` and so on; returns the paths. An existing file is replaced."""
    parted = len(result.rows) > CSV_ROWS
    written = []
    for part in range(max(1, -(-len(result.rows) // CSV_ROWS))):
        path = f"{stem}_part_{part + 1}.csv" if parted else f"{stem}.csv"
        stop = min(len(result.rows), (part + 1) * CSV_ROWS)
        with files.replacing(path) as stream:
            stream.write(csv_text([Cells([tuple(tables.columns(result))])]))
            for start in range(part * CSV_ROWS, stop, tables.BLOCK):
                stream.write(csv_text(tables.block(result, start, min(stop, start + tables.BLOCK))))
        written.append(path)
    return written


def write_xlsx(result: ComparisonResult, stem: str) -> list[str]:
    """Write ``<stem>.xlsx``, further sheets from 1 048 500 rows on; returns its path.

    Raises:
        MissingDependency: openpyxl is not installed.
    """
    path = f"{stem}.xlsx"
    xlsx.write_xlsx(path, _sheets(result))
    return [path]


def _sheets(result: ComparisonResult) -> Iterator[xlsx.Sheet]:
    """A table without rows has one sheet too."""
    rows = tables.rows(result)
    for part in range(max(1, -(-len(result.rows) // SHEET_ROWS))):
        title = f"part_{part}" if len(result.rows) > SHEET_ROWS else "Sheet1"
        of_part = chain([tables.columns(result)], islice(rows, SHEET_ROWS))
        yield xlsx.Sheet(title, of_part, tables.RESULT, (tables.STACK,), (ERROR,), (WARNING,))


def write(result: ComparisonResult, stem: str, as_xlsx: bool) -> list[str]:
    """Write the table; returns the files.

    Args:
        result: The comparison.
        stem: The path without its suffix.
        as_xlsx: Write a workbook, in which errors and warnings have a colour, and not CSV.
    """
    return write_xlsx(result, stem) if as_xlsx else write_csv(result, stem)
