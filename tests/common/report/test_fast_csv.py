"""The fast way to CSV writes the bytes that the standard library writes."""

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
from hypothesis import given
from hypothesis import strategies as st

import probe
from probe.common.report.cells import Cells
from probe.common.report.csv_lines import csv_text
from probe.compare.comparison import compare_dumps
from probe.compare.output import tables

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
def test_numbers_among_other_cells(rows: list[tuple[Any, ...]]) -> None:
    assert written(Cells(rows, numbers=True)) == by_the_library([(LEFT, *row) for row in rows])


@given(rows_of(st.floats(allow_nan=False, allow_infinity=False) | st.just(0) | texts))
def test_numbers_with_a_unit(rows: list[tuple[Any, ...]]) -> None:
    def show(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(f"{cell}%" if type(cell) is float else cell for cell in row)

    part = Cells(rows, show, numbers=True, unit="%")
    assert written(part) == by_the_library([(LEFT, *show(row)) for row in rows])


@given(rows_of(st.booleans() | texts), st.booleans())
def test_texts_and_flags(rows: list[tuple[Any, ...]], distinct: bool) -> None:
    if distinct:
        rows = [tuple(map(str, row)) for row in rows]
    assert written(Cells(rows, distinct=distinct)) == by_the_library([(LEFT, *row) for row in rows])


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
