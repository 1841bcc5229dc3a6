"""A workbook as people expect one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.common.report.xlsx import Sheet, write_xlsx

openpyxl: Any = pytest.importorskip("openpyxl")

HEADER = ("Name", "Result", "Stack")
ROWS = [HEADER, ("a" * 200, "pass", "File a.py\nFile b.py"), ("b", "error", ""), ("c", "warning", "")]


def page_of(path: Path, *sheets: Sheet) -> Any:
    write_xlsx(str(path), sheets)
    return openpyxl.load_workbook(path).worksheets[0]


def test_the_header_stays_in_sight_and_can_be_filtered(tmp_path: Path) -> None:
    page = page_of(tmp_path / "book.xlsx", Sheet("one", ROWS))
    assert page.freeze_panes == "A2" and page.auto_filter.ref == "A1:C4"
    assert [tuple(cell or "" for cell in row) for row in page.iter_rows(values_only=True)] == ROWS


def test_columns_are_as_wide_as_their_cells_and_not_wider_than_a_screen(tmp_path: Path) -> None:
    widths = page_of(tmp_path / "book.xlsx", Sheet("one", ROWS)).column_dimensions
    assert widths["A"].width == 60 and 8 <= widths["B"].width < 12


def test_rows_are_coloured_by_their_result_and_stacks_are_folded(tmp_path: Path) -> None:
    page = page_of(tmp_path / "book.xlsx", Sheet("one", ROWS, "Result", ("Stack",)))
    rules = {
        rule.formula[0]: rule.dxf.fill.bgColor.rgb[-6:]
        for area in page.conditional_formatting
        for rule in area.rules
        if str(area.sqref) == "A2:C4"
    }
    assert rules == {'$B2="error"': "FFC7CE", '$B2="warning"': "FFEB9C"}
    assert page.column_dimensions["C"].hidden and not page.column_dimensions["A"].hidden


def test_a_table_without_rows_is_a_sheet_too(tmp_path: Path) -> None:
    page = page_of(tmp_path / "book.xlsx", Sheet("empty", [("Name", "Result")], "Result"))
    assert [cell.value for cell in page[1]] == ["Name", "Result"]
