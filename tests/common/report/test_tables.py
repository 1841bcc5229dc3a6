"""Tables as CSV by the fast way, and as workbooks."""

from __future__ import annotations

import csv
import io
import itertools
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import probe
from probe.common.report.csv_lines import Cells, csv_text
from probe.common.report.xlsx import Sheet, write_xlsx
from probe.compare import tables
from probe.compare.comparison import compare_dumps

# --- the fast way to CSV writes the bytes that the standard library writes

CASES = Path(__file__).parents[2] / "compare" / "cases"

odd = ["N/A", "Nan", "inf", " inf", "],[", ",;,", "null", '"', "1,2", "\r", "~1"]
texts = st.text(max_size=4) | st.sampled_from(odd)
cells = st.floats() | st.integers(-5, 5) | st.integers() | st.booleans() | st.none() | texts | st.just([1, [2]])


def rows_of(cell: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[cell] * width), min_size=1, max_size=6))


def by_the_library(rows: Sequence[Sequence[Any]]) -> bytes:
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue().encode(errors="backslashreplace")


# A line has two cells at least; a single empty one would have quotation marks.
LEFT = "name"


def written(part: Cells) -> bytes:
    return csv_text([Cells([(LEFT,)] * len(part.of_rows)), part])


@given(rows_of(cells | st.floats(allow_nan=False, allow_infinity=False)))
@example([(1,), (1.0,), (True,), (0.0,), (-0.0,), (0,), (1.0,), (0.0,), (-0.0,)])
def test_numbers_among_other_cells(rows: list[tuple[Any, ...]]) -> None:
    assert written(Cells(rows, numbers=True)) == by_the_library([(LEFT, *row) for row in rows])


def all_sizes() -> list[float]:
    """The powers of two and of ten with their neighbours, where rules of rounding and forms of writing change."""
    middle = [2.0**k for k in range(-1074, 1024)] + [float(f"1e{k}") for k in range(-323, 309)]
    return [near for x in middle for near in (x, math.nextafter(x, 0), math.nextafter(x, math.inf)) if near < math.inf]


def single_precision() -> list[float]:
    """Numbers as the statistics of float32 tensors are."""
    bits = range(0, 0x7F800000, 104729)
    return [struct.unpack("f", struct.pack("I", number))[0] for number in bits]


@pytest.mark.parametrize("numbers", [all_sizes, single_precision])
def test_every_size_of_number_has_the_digits_and_the_form_of_repr(numbers: Any) -> None:
    positive = numbers()
    rows = [(x, -x) for x in positive]
    expected = "".join(f"{x!r},{-x!r}\n" for x in positive)
    assert csv_text([Cells(rows, numbers=True)]).decode() == expected


@pytest.mark.parametrize("case", ["identical_stat", "inf_stat", "missing_apis_stat", "md5", "debug_save"])
def test_recorded_tables_are_the_same_in_blocks_of_any_length(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = compare_dumps(*(probe.read(CASES / case / side) for side in ("target", "golden")))
    expected = by_the_library(list(tables.rows(result)))
    for length in (1, 7, 10**6):
        starts = range(0, len(result.rows), length)
        blocks = [csv_text(tables.block(result, start, start + length)) for start in starts]
        assert b"".join(blocks) == expected
    monkeypatch.setattr(tables, "BLOCK", 5)
    assert by_the_library(list(tables.rows(result))) == expected
    assert len(list(itertools.islice(tables.rows(result), 3))) == 3


# --- A workbook as people expect one

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
