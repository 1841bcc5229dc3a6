"""Rows of a table as lines of CSV: one at a time, or thousands with the bytes that the standard library writes.

Most of a table are floats, and to write one with `repr` takes as long as everything else about its cell. msgspec finds
the same shortest digits in a quarter of the time; it differs in how it writes exponents, and writes 0.00001 without
one. So a number is taken from JSON, and what is not a finite number is written cell by cell.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Union

import msgspec
from msgspec.structs import replace

# Texts that a spreadsheet would take for a formula, also in full-width letters and after a separator.
_FORMULA = re.compile(r"^\s*[+\-=%@＋－＝％＠]|;\s*[+\-=%@＋－＝％＠]")  # noqa: RUF001
_NUMBER = re.compile(r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?\s*$|^\s*-?(inf|nan)\s*$", re.IGNORECASE)
Show = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class Cells(msgspec.Struct, frozen=True):
    """Neighbouring cells of some rows, and what there is to know for writing them fast."""

    of_rows: Sequence[tuple[Any, ...]]
    show: Show = tuple
    """The shown form of the cells of one row; equal cells have equal forms."""
    numbers: bool = False
    """True if most are finite numbers, for which `show` gives themselves, or their text and `unit`."""
    unit: str = ""
    distinct: bool = False
    """True if the cells of each row differ from those of any other, and `show` changes nothing."""
    times: int = 1
    """The number of times that these cells follow each other in a row."""


def harmless(cell: str) -> str:
    """`cell` with an apostrophe in front where a spreadsheet would compute it. Numbers stay as they are."""
    if cell[:1].isalpha() and ";" not in cell:
        return cell
    return f"'{cell}" if _FORMULA.search(cell) and not _NUMBER.match(cell) else cell


def unharmed(cell: str) -> str:
    """The text that `harmless` was given, for who reads a table again."""
    return cell[1:] if cell[:1] == "'" and harmless(cell[1:]) == cell else cell


# --- csv lines


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


_SPECIAL = ',"\n\r'

# JSON and repr differ in: 1e-7 and 1e-07, 1e20 and 1e+20, 0.000012 and 1.2e-05. Each pattern begins with plain
# letters, which are found ten times as fast.
_ONE_DIGIT = re.compile(r"e-(?=\d[,\]])")
_NO_SIGN = re.compile(r"e(?=\d)")
_FOUR_ZEROS = re.compile(r"0\.0000(?<=[\[,-]0\.0000)(\d)(\d*)")
_NEXT_ROW = "],["


def csv_text(parts: Sequence[Cells]) -> bytes:
    """The rows made of `parts`, from left to right, as ``csv.writer`` writes them, in UTF-8.

    A character that UTF-8 has no form for has a backslash and its number in its place.
    """
    lines = map(",".join, zip(*map(_texts, parts)))
    return ("\n".join(lines) + "\n").encode(errors="backslashreplace")


def number_texts(rows: Sequence[Sequence[float]]) -> list[str]:
    """The cells of each row, which are numbers, as `repr` writes them, with commas between them."""
    return _number_texts(Cells(list(map(tuple, rows)), numbers=True)) if rows else []


def _texts(cells: Cells) -> list[str]:
    """The part of every row that `cells` are."""
    if cells.times > 1:
        return [",".join([text] * cells.times) for text in _texts(replace(cells, times=1))]
    if cells.numbers:
        return _number_texts(cells)
    if cells.distinct:
        together = "".join(chain.from_iterable(cells.of_rows))
        if any(character in together for character in _SPECIAL):
            return list(map(_line, cells.of_rows))
        return list(map(",".join, cells.of_rows))
    return list(map(_known_line, repeat(cells.show), cells.of_rows))


@lru_cache(maxsize=4096)
def _known_line(show: Show, row: tuple[Any, ...]) -> str:
    return _line(show(row))


def _line(cells: tuple[Any, ...]) -> str:
    """Cells in the middle of a row."""
    line = io.StringIO()
    # A line of one empty cell would have quotation marks.
    csv.writer(line, lineterminator="\n").writerow((*cells, ""))
    return line.getvalue()[:-2]


def _number_texts(cells: Cells) -> list[str]:
    """The texts of rows of numbers, of which many are the same: a tensor is seen by each call that takes it."""
    try:
        # Numbers that are equal may have other texts: 1 and 1.0, 0.0 and -0.0.
        keys = list(map(_bits, cells.of_rows))
    except (TypeError, ValueError, OverflowError):
        return _distinct_number_texts(cells)
    rows = dict(zip(keys, cells.of_rows))
    if len(rows) == len(keys):
        return _distinct_number_texts(cells)
    texts = dict(zip(rows, _distinct_number_texts(replace(cells, of_rows=list(rows.values())))))
    return list(map(texts.__getitem__, keys))


_bits = msgspec.msgpack.Encoder().encode


def _distinct_number_texts(cells: Cells) -> list[str]:
    rows = cells.of_rows
    try:
        encoded = msgspec.json.encode(rows).decode()
    except (TypeError, ValueError, OverflowError):
        # JSON has no form for it, or msgspec none for so large a number.
        return [_line(cells.show(row)) for row in rows]
    texts = _as_repr(encoded, cells.unit).split(_NEXT_ROW)
    if len(texts) != len(rows) or encoded.count("[") != len(rows) + 1 or "{" in encoded:
        # A text or list that looks like the end of a row.
        return [_line(cells.show(row)) for row in rows]
    if not any(sign in encoded for sign in _NO_NUMBER):
        return texts
    return [
        _line(cells.show(row)) if '"' in text or "l" in text or "u" in text else text for text, row in zip(texts, rows)
    ]


_NO_NUMBER = '"lu'
"""Characters of which one is in every text, in null, which NaN and infinity are too, in true and in false."""


def _as_repr(encoded: str, unit: str) -> str:
    """Rows of numbers in JSON, without the outermost brackets, in the form of `repr`, with `unit` but for a whole 0."""
    if "e" in encoded:
        encoded = _ONE_DIGIT.sub("e-0", encoded)
        if encoded.count("e") > encoded.count("e-"):
            encoded = _NO_SIGN.sub("e+", encoded)
    if "0.0000" in encoded:
        encoded = _FOUR_ZEROS.sub(_with_exponent, encoded)
    encoded = encoded[2:-2]
    if unit:
        encoded = f",{encoded.replace(_NEXT_ROW, ',;,')},".replace(",", f"{unit},")
        # A difference of nothing has no unit.
        if f",0{unit}" in encoded:
            encoded = encoded.replace(f",0{unit}", ",0")
        encoded = encoded[len(unit) + 1 : -1].replace(f",;{unit},", _NEXT_ROW)
    return encoded


def _with_exponent(digits: re.Match[str]) -> str:
    first, rest = digits.group(1, 2)
    return f"{first}.{rest}e-05" if rest else f"{first}e-05"
