"""The rows of the tables of saved values: what an object of rules is asked for, and ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Protocol

from probe.rollout.saving.folders import Position

Cell = Union[int, float, str, None]
Array = NDArray[Any]

NUMBERS = ("step", "rank", "micro_step", "id")
MEASURED = {
    "shape1": "shape1",
    "shape2": "shape2",
    "相同元素百分比(%)": "equal elements (%)",
    "首个不匹配元素索引": "index of the first mismatch",
    "最大绝对误差": "largest absolute error",
    "最大相对误差": "largest relative error",
    "误差在千分之一内元素占比(%)": "elements within 0.1 % (%)",
    "误差在百分之一内元素占比(%)": "elements within 1 % (%)",
}
"""The headings of msProbe, with ours in English."""
NOTE = {"备注": "note"}
_LIMITS = (0.001, 0.01)
_BLOCK = 1 << 18
"""Elements that are measured at once."""


class Row(NamedTuple):
    """The cells of one array, below the headings `MEASURED`, and a note."""

    cells: Sequence[Cell]
    note: str = ""
    differs: bool = False


class SavedTableRules(Protocol):
    """The rows of a table."""

    name: str
    has_notes: bool
    """True if the table has a column of notes, and rows for what one side lacks."""

    def positions(self, first: Mapping[Position, Any], second: Mapping[Position, Any]) -> Mapping[Position, Position]:
        """By the id of each row, the position in two values."""

    def row(self, first: Optional[Array], second: Optional[Array]) -> Row:  # noqa: UP045 (mypy on Python 3.9)
        """The row of an array; ``None`` for one that a side lacks."""


class ProbeTables:
    """Our rows: each position of either side; NaN equals NaN, and other shapes are not compared."""

    name = "probe"
    has_notes = True

    def positions(self, first: Mapping[Position, Any], second: Mapping[Position, Any]) -> Mapping[Position, Position]:
        """The positions of the first side, and then what the second alone has."""
        return {position: position for position in (*first, *second)}

    def row(self, first: Array | None, second: Array | None) -> Row:
        """Measure all elements in float64."""
        shapes = [None if side is None else shape_text(side) for side in (first, second)]
        if first is None or second is None:
            return Row((*shapes, *[None] * 6), f"only in dir{2 if first is None else 1}", True)
        if first.shape != second.shape:
            return Row((*shapes, *[None] * 6), "shapes differ: not compared", True)
        if (first.dtype.kind in "US") != (second.dtype.kind in "US"):
            return Row((*shapes, *[None] * 6), "numbers and texts: not compared", True)
        measured = measure(first, second)
        return Row((*shapes, *measured), "", measured[1] is not None)


PROBE_TABLES = ProbeTables()


def shape_text(array: Array) -> str:
    """``[2, 7]``."""
    return str(list(array.shape))


def measure(first: Array, second: Array) -> tuple[Cell, ...]:
    """Share of equal elements, first mismatch, largest absolute and relative error, shares within 0.1 % and 1 %.

    Args:
        first, second: Of one shape. The relative error refers to the larger absolute value of the two.

    Returns:
        Shares in percent; an index of ``None`` if nothing differs, and errors of ``None`` if the elements are texts.
    """
    first, second = first.reshape(-1), second.reshape(-1)
    if not first.size:
        return 100, None, 0, 0, 100, 100
    totals = _Totals()
    for start in range(0, first.size, _BLOCK):
        totals.add(first[start : start + _BLOCK], second[start : start + _BLOCK], start)
    return totals.cells(first.size)


_EXACT = 1 << 52
"""Integers up to here, and their differences, are exact in float64."""
_EDGES = ((np.max, 1), (np.min, -1))


class _Totals:
    def __init__(self) -> None:
        self._equal = 0
        self._within = [0] * len(_LIMITS)
        self._index: int | None = None
        self._absolute: float | None = 0.0
        self._relative: float | None = 0.0

    def add(self, first: Array, second: Array, start: int) -> None:
        same = first == second
        if first.dtype.kind in "fc" and second.dtype.kind in "fc":
            same |= np.isnan(first) & np.isnan(second)
        equal = int(np.count_nonzero(same))
        self._equal += equal
        if equal == same.size:
            self._within = [number + equal for number in self._within]
            return
        if self._index is None:
            self._index = start + int(np.argmin(same))
        if first.dtype.kind in "US":
            self._absolute = self._relative = None
            self._within = [number + equal for number in self._within]
            return
        absolute, relative = _errors(first[~same], second[~same])
        self._absolute = _larger(self._absolute, absolute)
        self._relative = _larger(self._relative, relative)
        for index, limit in enumerate(_LIMITS):
            self._within[index] += equal + int(np.count_nonzero(relative <= limit))

    def cells(self, size: int) -> tuple[Cell, ...]:
        shares = [100 * number / size for number in (self._equal, *self._within)]
        return shares[0], self._index, self._absolute, self._relative, *shares[1:]


def _errors(first: Array, second: Array) -> tuple[Array, Array]:
    """Absolute and relative errors of elements that differ; NaN on one side makes both of them NaN."""
    integers = first.dtype.kind in "iub" and second.dtype.kind in "iub"
    if integers and max(int(edge(side)) * sign for side in (first, second) for edge, sign in _EDGES) > _EXACT:
        # In Python's integers, of which no difference is rounded away.
        exact = [abs(int(a) - int(b)) for a, b in zip(first.tolist(), second.tolist())]
        absolute = np.array(exact, np.float64)
    else:
        wide = np.complex128 if "c" in (first.dtype.kind, second.dtype.kind) else np.float64
        with np.errstate(all="ignore"):
            absolute = np.abs(first.astype(wide) - second.astype(wide)).astype(np.float64)
    with np.errstate(all="ignore"):
        larger = np.fmax(*(np.abs(side.astype(np.complex128)) for side in (first, second)))
        # Of an infinity on one side alone it is infinite.
        return absolute, np.where(np.isinf(absolute), np.inf, absolute / larger)


def _larger(found: float | None, errors: Array) -> float:
    """The largest error, NaN if one is."""
    largest = float(errors.max())
    return largest if found is None or math.isnan(largest) or largest > found else found
