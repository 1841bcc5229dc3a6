"""Rows of a table as lines of CSV: the bytes that the standard library writes, thousands of rows at a time.

Most of a table are floats, and to write one with `repr` takes as long as everything else about its cell. msgspec finds
the same shortest digits in a quarter of the time; it differs in how it writes exponents, and writes 0.00001 without
one. So a number is taken from JSON, and what is not a finite number is written cell by cell.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from probe.compare.tables import Cells

_SPECIAL = ',"\n\r'

# How JSON and repr differ: 1e-7 and 1e-07, 1e20 and 1e+20.
_ONE_DIGIT = re.compile(r"e-(?=\d,)")
_NO_SIGN = re.compile(r"e(?=\d)")
# And 0.000012 and 1.2e-05: the mark stands for the zeros.
_MARK = "~"
_MARKED = re.compile(rf"{_MARK}(\d)(\d*)")

_NEXT_ROW = ",;,"


def csv_text(parts: Sequence[Cells]) -> bytes:
    """The rows made of `parts`, from left to right, as ``csv.writer`` writes them, in UTF-8.

    A character that UTF-8 has no form for has a backslash and its number in its place.
    """
    lines = map(",".join, zip(*map(_texts, parts)))
    return "".join([f"{line}\n" for line in lines]).encode(errors="backslashreplace")


def _texts(cells: Cells) -> list[str]:
    """The part of every row that `cells` are."""
    if cells.numbers:
        return _number_texts(cells)
    if cells.distinct:
        together = "".join(chain.from_iterable(cells.of_rows))
        if any(character in together for character in _SPECIAL):
            return list(map(_line, cells.of_rows))
        return list(map(",".join, cells.of_rows))
    known = _Lines()
    return [known[row] for row in cells.of_rows]


class _Lines(dict[tuple[Any, ...], str]):
    """Cells of a row -> their text."""

    def __missing__(self, cells: tuple[Any, ...]) -> str:
        text = self[cells] = _line(cells)
        return text


def _line(cells: tuple[Any, ...]) -> str:
    """Cells in the middle of a row."""
    line = io.StringIO()
    # A line of one empty cell would have quotation marks.
    csv.writer(line, lineterminator="\n").writerow((*cells, ""))
    return line.getvalue()[:-2]


def _number_texts(cells: Cells) -> list[str]:
    rows = cells.of_rows
    try:
        encoded = msgspec.json.encode(rows).decode()
    except (TypeError, ValueError, OverflowError):
        # JSON has no form for it, or msgspec none for so large a number.
        return [_line(tuple(map(cells.show, row))) for row in rows]
    joined = encoded[2:-2].replace("],[", _NEXT_ROW)
    texts = _as_repr(joined, cells.unit).split(_NEXT_ROW)
    if len(texts) != len(rows) or "[" in joined or "{" in joined:
        # A text or list that looks like the end of a row.
        return [_line(tuple(map(cells.show, row))) for row in rows]
    if not any(sign in joined for sign in _NO_NUMBER):
        return texts
    return [
        _line(tuple(map(cells.show, row))) if '"' in text or "l" in text or "u" in text else text
        for text, row in zip(texts, rows)
    ]


_NO_NUMBER = '"lu'
"""One of these is in every text, in null, which NaN and infinity are too, in true and in false."""


def _as_repr(joined: str, unit: str) -> str:
    """Numbers as JSON has them, with commas between them, as `repr` has them, with `unit` behind all but the 0."""
    joined = f",{joined},"
    if "e" in joined:
        joined = _ONE_DIGIT.sub("e-0", joined)
        if joined.count("e") > joined.count("e-"):
            joined = _NO_SIGN.sub("e+", joined)
    joined = joined.replace(",0.0000", f",{_MARK}").replace(",-0.0000", f",-{_MARK}")
    if _MARK in joined:
        joined = _MARKED.sub(_with_exponent, joined)
    if unit:
        joined = joined.replace(",", f"{unit},").replace(f",0{unit}", ",0").replace(f",;{unit}", ",;")
    return joined[len(unit) + 1 : -1]


def _with_exponent(digits: re.Match[str]) -> str:
    first, rest = digits.groups()
    return f"{first}.{rest}e-05" if rest else f"{first}e-05"
