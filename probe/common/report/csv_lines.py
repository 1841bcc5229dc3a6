"""Rows of CSV for tables that are written row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Union

from probe.common.report.cells import harmless

Cell = Union[int, float, str, None]


def csv_line(cells: Sequence[Cell]) -> bytes:
    """One row: floats with every digit, ``None`` as an empty cell, texts in one line that no spreadsheet computes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_text(cell) for cell in cells])
    return text.getvalue().encode(errors="backslashreplace")


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return harmless(" ".join(cell.split()))
    # NumPy's scalars are floats whose repr is another text.
    return repr(float(cell)) if isinstance(cell, float) else str(int(cell))
