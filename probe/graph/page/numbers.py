"""Numbers as short as they can be without becoming others: columns of JSON from columns of floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics.error_bounds import ALTOGETHER

Floats = NDArray[np.float64]

DIFFERS = "differs"
"""A difference that has no size."""
_SAFE_INTEGER = 1e15
_LARGEST_INTEGER = 2**53


@dataclass
class NumberColumn:
    """A column of numbers, most of them floats."""

    values: Floats
    """NaN stands for a NaN, and for what `others` has."""
    others: dict[int, Any] = field(default_factory=dict)
    """Values that are no float, by index: ``None``, an integer, a text."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_nan(self) -> NDArray[np.bool_]:
        """A mask of the values that are NaN; absent values, which are stored as NaN, are not among them."""
        found = np.isnan(self.values)
        found[list(self.others)] = False
        return found

    @property
    def is_infinite(self) -> NDArray[np.bool_]:
        return np.isinf(self.values)

    def as_json(self) -> list[Any]:
        """The column as JSON has it: what is not finite becomes a text, a whole number has no point."""
        values = self.values
        found: list[Any] = values.tolist()
        whole = np.flatnonzero((values == np.rint(values)) & (np.abs(values) < _SAFE_INTEGER))
        for index in whole.tolist():
            # Zero keeps its sign.
            number = found[index]
            found[index] = int(number) if number or not np.signbit(values[index]) else number
        for index in np.flatnonzero(~np.isfinite(values)).tolist():
            found[index] = not_finite(found[index])
        for index, other in self.others.items():
            found[index] = other
        return found


def not_finite(number: float) -> str:
    """The text that stands for a NaN or an infinity."""
    return "nan" if number != number else "inf" if number > 0 else "-inf"


def numbers(column: Sequence[Any], narrow: NDArray[np.bool_] | slice = slice(None)) -> NumberColumn:
    """A column of statistics; those that are `narrow` are rounded to the digits that tell float32 apart."""
    kinds = set(map(type, column))
    others: dict[int, Any] = {}
    if kinds - {float}:
        others = {index: _json_value(value) for index, value in enumerate(column) if type(value) is not float}
        column = [value if type(value) is float else np.nan for value in column]
    values = np.array(column, dtype=np.float64)
    values[narrow] = shortest(values[narrow])
    return NumberColumn(values, others)


def _json_value(value: Any) -> Any:
    """A value that is no float as JSON has it."""
    if value is None or type(value) is str:
        return value
    # Larger numbers would be other numbers in a browser.
    return int(value) if isinstance(value, int) and abs(value) < _LARGEST_INTEGER else str(value)


def shortest(values: Floats) -> Floats:
    """The values, those that are float32 as the decimal numbers of at most nine digits that still are the same float32.

    Example:
        >>> shortest(np.array([0.10000000149011612, 0.1])).tolist()
        [0.1, 0.1]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
        is_narrow = (narrow == values) & np.isfinite(values) & (values != 0)
    found = values.copy()
    left = np.flatnonzero(is_narrow)
    for digits in (6, 7, 8, 9):
        rounded = significant(values[left], digits)
        with np.errstate(over="ignore"):
            fits = rounded.astype(np.float32) == narrow[left]
        found[left[fits]] = rounded[fits]
        left = left[~fits]
    return found


def significant(values: Floats, digits: int) -> Floats:
    """Finite values other than zero, rounded to `digits` decimal digits."""
    exponents = np.floor(np.log10(np.abs(values))).astype(np.int64)
    shifts = digits - 1 - exponents
    # Powers of ten up to 22 are floats themselves, so that one division gives the float nearest to the decimal number.
    exact = np.abs(shifts) <= 22
    powers = np.power(10.0, np.abs(np.where(exact, shifts, 0)).astype(np.float64))
    scaled = np.rint(np.where(shifts >= 0, values * powers, values / powers))
    found = np.where(shifts >= 0, scaled / powers, scaled * powers)
    for index in np.flatnonzero(~exact).tolist():
        found[index] = float(f"{values[index]:.{digits - 1}e}")
    return np.asarray(found, dtype=np.float64)


def rounded(values: Floats, digits: int = 3) -> list[Any]:
    """Differences with so many digits as JSON has them: ``None`` for NaN, which means that there is none.

    A difference that has no size, such as that of two checksums, is `DIFFERS`.
    """
    found = values.copy()
    normal = np.isfinite(values) & (values != 0)
    found[normal] = significant(values[normal], digits)
    as_json: list[Any] = found.tolist()
    for index in np.flatnonzero(found == 0).tolist():
        as_json[index] = 0
    for index in np.flatnonzero(normal & (values >= ALTOGETHER)).tolist():
        as_json[index] = DIFFERS
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        as_json[index] = None if as_json[index] != as_json[index] else not_finite(as_json[index])
    return as_json
