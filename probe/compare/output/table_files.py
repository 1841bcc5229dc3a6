"""Tables as files: CSV, or a workbook where one is asked for. Long ones are parted, as spreadsheets need it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from probe.common import files
from probe.common.errors import MissingDependency
from probe.common.report.cells import Cells
from probe.common.report.fast_csv import csv_text
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
    try:
        import openpyxl
    except ImportError:
        raise MissingDependency("openpyxl is needed to write .xlsx files: pip install 'msprobe[compare]'.") from None
    book = openpyxl.Workbook(write_only=True)
    rows = tables.rows(result)
    for part, first in enumerate(_parts(rows)):
        sheet = book.create_sheet(f"part_{part}" if len(result.rows) > SHEET_ROWS else "Sheet1")
        sheet.append(tables.columns(result))
        for cells in chain(first, islice(rows, SHEET_ROWS - len(first))):
            sheet.append([_sheet_cell(cell) for cell in cells])
    path = f"{stem}.xlsx"
    with files.replacing(path) as stream:
        book.save(stream)
    return [path]


def _parts(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """The first row of every sheet; a table without rows has one sheet too."""
    yield list(islice(rows, 1))
    while first := list(islice(rows, 1)):
        yield first


def _sheet_cell(cell: Any) -> Any:
    if type(cell) is str:
        return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", cell)
    # Numbers that are none to a spreadsheet.
    if (type(cell) is int and abs(cell) >= 1 << 63) or (type(cell) is float and not math.isfinite(cell)):
        return str(cell)
    return cell


_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")


def write(result: ComparisonResult, stem: str, xlsx: bool) -> list[str]:
    """Write the table; returns the files."""
    return write_xlsx(result, stem) if xlsx else write_csv(result, stem)
