"""The layout of a table: its headings, numbers, blanks and line ends, and reading either kind back."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from probe.common import files
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.report.csv_lines import Cell, csv_line, harmless

Number = Union[int, float]

_BOM = b"\xef\xbb\xbf"
_DECIMALS = 14
"""Decimals of numbers in msProbe's tables; observed."""


@dataclass(frozen=True)
class TableLayout:
    """The form of a table: that of msProbe, or the plain one.

    msProbe's has its own headings, a byte order mark, 14 decimals, one blank for what is not computed, and line breaks
    in messages. The plain one has English headings, floats of which every digit counts, empty cells and one line a row.
    """

    is_msprobe: bool = False

    def heading_line(self, headings: Sequence[Heading]) -> bytes:
        """The first line of a file."""
        line = self.line([heading.msprobe if self.is_msprobe else heading.plain for heading in headings])
        return _BOM + line if self.is_msprobe else line

    def line(self, cells: Sequence[Cell]) -> bytes:
        """One row."""
        if not self.is_msprobe:
            return csv_line(cells)
        text = io.StringIO()
        csv.writer(text, lineterminator="\r\n").writerow([_text(cell) for cell in cells])
        return text.getvalue().encode(errors="backslashreplace")


def _text(cell: Cell) -> str:
    """The text of a cell as msProbe writes it."""
    if cell is None:
        return " "
    if isinstance(cell, str):
        return harmless(cell)
    return f"{cell:.{_DECIMALS}f}" if isinstance(cell, float) else str(int(cell))


PLAIN = TableLayout()
MSPROBE = TableLayout(is_msprobe=True)
LAYOUTS: Mapping[str, TableLayout] = {"english": PLAIN, "msprobe": MSPROBE}
"""The values of ``--headers``."""


@dataclass(frozen=True)
class Heading:
    """A column: its plain heading, which is also its name in this package, and what msProbe calls it."""

    plain: str
    msprobe: str


def headings(of_msprobe: Mapping[str, str]) -> tuple[Heading, ...]:
    """Columns in order, from plain headings and those of msProbe."""
    return tuple(Heading(plain, other) for plain, other in of_msprobe.items())


@dataclass(frozen=True)
class TableRow:
    """A row of a file that was read: cells by plain heading, without blanks around them; and where it stands."""

    cells: Mapping[str, str]
    location: str

    def number(self, heading: str) -> Number | None:
        """The number in a column; ``None`` where it is blank, or where the file lacks the column.

        Raises:
            MsprobeException: something else stands there.
        """
        text = self.cells.get(heading, "")
        if not text:
            return None
        try:
            number = float(text)
            whole = text.lstrip("+-").isdigit()
            if whole and math.isinf(number):
                raise ValueError("too large for any format")
            return int(text) if whole else number
        except ValueError:
            found = f"{self.location}: {heading} is {text!r:.80}"
            raise MsprobeException(f"{found}; allowed: a number, or nothing.") from None


def read(path: str, known: Sequence[Heading], needed: Sequence[str]) -> list[TableRow]:
    """The rows of a table of either kind.

    Args:
        path: A CSV file, with or without a byte order mark.
        known: Its columns, in any order; others are kept under the heading they have.
        needed: Plain headings without which it is another table.

    Raises:
        FileCheckException: the file cannot be read.
        MsprobeException: it is no table of this kind, or a row is damaged.
    """
    try:
        with files.open_for_reading(path) as stream:
            text = stream.read().decode("utf-8-sig")
    except OSError as error:
        raise FileCheckException(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise MsprobeException(f"{path}: is no text in UTF-8: {error.reason} at byte {error.start}.") from None
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        names = _plain_headings(next(lines, []), known)
        lacking = [name for name in needed if name not in names]
        if lacking:
            raise MsprobeException(f"{path}: has no column {', '.join(lacking)}; it is another table, or damaged.")
        return [_record(f"{path}: line {lines.line_num}", names, cells) for cells in lines if cells]
    except csv.Error as error:
        raise MsprobeException(f"{path}: line {lines.line_num}: not a whole row of CSV: {error}.") from None


def _plain_headings(found: Sequence[str], known: Sequence[Heading]) -> list[str]:
    plain = {text.strip().lower(): heading.plain for heading in known for text in (heading.plain, heading.msprobe)}
    return [plain.get(text.strip().lower(), text.strip()) for text in found]


def _record(location: str, names: Sequence[str], cells: Sequence[str]) -> TableRow:
    # msProbe leaves the last cell out where there is no message.
    if len(cells) not in (len(names), len(names) - 1):
        raise MsprobeException(
            f"{location}: {len(cells)} cells under {len(names)} headings; a run that was killed left half a row there: "
            "resume it, or remove the row."
        )
    # Line breaks at the ends belong to a message.
    return TableRow({name: cell if name == "Message" else cell.strip() for name, cell in zip(names, cells)}, location)
