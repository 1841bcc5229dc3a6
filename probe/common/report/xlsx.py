"""Workbooks, written sheet by sheet."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from probe.common import files
from probe.common.errors import MissingDependency

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")


def load_openpyxl() -> Any:
    """The library that reads and writes workbooks.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import openpyxl
    except ImportError:
        raise MissingDependency("openpyxl is needed for workbooks: pip install 'msprobe[compare]'.") from None
    return openpyxl


def write_xlsx(path: str, sheets: Iterable[tuple[str, Iterable[Sequence[Any]]]]) -> None:
    """Write a workbook.

    Args:
        path: the file; an existing one is replaced.
        sheets: the title of each sheet and its rows, which are asked for one after the other.

    Raises:
        MissingDependency: openpyxl is not installed.
    """
    book = load_openpyxl().Workbook(write_only=True)
    for title, rows in sheets:
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append([_cell(cell) for cell in row])
    with files.replacing(path) as stream:
        book.save(stream)


def _cell(cell: Any) -> Any:
    if type(cell) is str:
        return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", cell)
    # Numbers that are none to a spreadsheet.
    if (type(cell) is int and abs(cell) >= 1 << 63) or (type(cell) is float and not math.isfinite(cell)):
        return str(cell)
    return cell
