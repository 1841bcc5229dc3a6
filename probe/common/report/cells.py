"""Cells of a table as data, and the text that a spreadsheet does not take for a formula."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Texts that a spreadsheet would take for a formula, also in full-width letters and after a separator.
_FORMULA = re.compile(r"^\s*[+\-=%@＋－＝％＠]|;\s*[+\-=%@＋－＝％＠]")  # noqa: RUF001
_NUMBER = re.compile(r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?\s*$|^\s*-?(inf|nan)\s*$", re.IGNORECASE)
Show = Callable[[tuple[Any, ...]], tuple[Any, ...]]


@dataclass(frozen=True)
class Cells:
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
