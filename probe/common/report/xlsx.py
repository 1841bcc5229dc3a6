"""Workbooks, written sheet by sheet."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from probe.common import files
from probe.common.errors import MissingDependency

_LOOKED_AT = 100
"""Rows that say how wide a column is."""
_NARROWEST, _WIDEST = 8, 60
"""In characters."""
_RED, _YELLOW = "FFC7CE", "FFEB9C"
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")


def load_openpyxl() -> Any:
    """The library that reads and writes workbooks.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import openpyxl
    except ImportError:
        raise MissingDependency("openpyxl is needed for workbooks: pip install openpyxl.") from None
    return openpyxl


class Sheet(msgspec.Struct, frozen=True):
    """One table of a workbook."""

    title: str
    rows: Iterable[Sequence[Any]]
    """The header and the rows, which are asked for one after the other."""
    judged_by: str = ""
    """The column whose text decides the colour of a row."""
    folded: Sequence[str] = ()
    """Columns that are closed until somebody opens them."""
    red: Sequence[str] = ("error",)
    """Texts of that column for which a row is red."""
    yellow: Sequence[str] = ("warning",)


def write_xlsx(path: str, sheets: Iterable[Sheet]) -> None:
    """Write a workbook. Headers stay in sight and have filters, and columns are as wide as their first cells.

    Args:
        path: the file; an existing one is replaced.
        sheets: its sheets, from left to right.

    Raises:
        MissingDependency: openpyxl is not installed.
    """
    book = load_openpyxl().Workbook(write_only=True)
    for sheet in sheets:
        _write_sheet(book.create_sheet(sheet.title), sheet)
    with files.replacing(path) as stream:
        book.save(stream)


def _write_sheet(page: Any, sheet: Sheet) -> None:
    from openpyxl.utils import get_column_letter

    rows = iter(sheet.rows)
    first = list(islice(rows, _LOOKED_AT))
    header = first[0] if first else ()
    # All of this stands in the file before the rows do.
    page.freeze_panes = "A2"
    for number, name in enumerate(header):
        column = page.column_dimensions[get_column_letter(number + 1)]
        widest = max(len(str(row[number])) for row in first if number < len(row))
        column.width = min(max(widest + 2, _NARROWEST), _WIDEST)
        if name in sheet.folded:
            column.outlineLevel, column.hidden = 1, True
    length = 0
    for row in chain(first, rows):
        page.append([_cell(cell) for cell in row])
        length += 1
    last = f"{get_column_letter(max(len(header), 1))}{max(length, 1)}"
    page.auto_filter.ref = f"A1:{last}"
    if sheet.judged_by in header and length > 1:
        colours = {**dict.fromkeys(sheet.red, _RED), **dict.fromkeys(sheet.yellow, _YELLOW)}
        _colour_rows(page, f"A2:{last}", get_column_letter(list(header).index(sheet.judged_by) + 1), colours)


def _colour_rows(page: Any, area: str, column: str, colours: Mapping[str, str]) -> None:
    """By a rule and not cell by cell, so that it stays right when rows are sorted, and costs nothing for a row."""
    from openpyxl.formatting.rule import FormulaRule
    from openpyxl.styles import PatternFill

    for text, colour in colours.items():
        fill = PatternFill(bgColor=colour, fill_type="solid")
        page.conditional_formatting.add(area, FormulaRule([f'${column}2="{text}"'], fill=fill))


def _cell(cell: Any) -> Any:
    if type(cell) is str:
        return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", cell)
    # Numbers that are none to a spreadsheet.
    if (type(cell) is int and abs(cell) >= 1 << 63) or (type(cell) is float and not math.isfinite(cell)):
        return str(cell)
    return cell
