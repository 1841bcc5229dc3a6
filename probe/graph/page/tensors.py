"""Columns of a page: tensors and values, short numbers, texts and call stacks, each written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.dump.reading.items import Item, shape_text
from probe.common.nonfinite.call_values import as_number
from probe.common.numerics.error_bounds import ALTOGETHER
from probe.common.numerics.formats import Kind, format_of

Floats = NDArray[np.float64]

DIFFERS = "differs"
"""A difference that has no size."""
_SAFE_INTEGER = 1e15
"""Whole numbers below it have no more than the 15 digits that float64 keeps."""
_LARGEST_INTEGER = 2**53
"""Integers from here on are not exact in the numbers of JavaScript."""


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
    if str in kinds:
        column = list(map(as_number, column))
        kinds = set(map(type, column))
    others: dict[int, Any] = {}
    if kinds - {float, type(None)}:
        others = {index: _json_value(value) for index, value in enumerate(column) if type(value) is not float}
        column = [value if type(value) is float else np.nan for value in column]
    # NumPy takes `None` for NaN.
    values = np.array(column, dtype=np.float64)
    if not others and type(None) in kinds:
        others = {index: None for index in np.flatnonzero(np.isnan(values)).tolist() if column[index] is None}
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


# --- texts


class Texts:
    """A list of texts, each once, in the order of their first use."""

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._indexes)

    def index(self, text: str) -> int:
        """The index of `text`; it is added if it is new."""
        return self._indexes.setdefault(text, len(self._indexes))

    def indexes(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """The index of each of `texts`."""
        known = self._indexes
        return np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)

    @property
    def texts(self) -> list[str]:
        """All of them."""
        return list(self._indexes)


# --- tensors


Integers = NDArray[np.int64]

_FIELDS = ("dtype", "shape", "requires_grad", "max", "min", "mean", "norm", "excluded", "md5", "value")
_fields = attrgetter(*_FIELDS)
_UNKNOWN = -1
"""The number that stands for an unknown ``requires_grad`` in a column of a page."""


@dataclass
class TensorColumns:
    """Columns with an entry for each tensor or value; texts are indices."""

    dtypes: Integers
    shapes: Integers
    requires_grad: list[int]
    statistics: tuple[NumberColumn, NumberColumn, NumberColumn, NumberColumn]
    """Maximum, minimum, mean, norm."""
    excluded: list[int]
    """The number of elements that are NaN, infinite or of 2^100 and more; 0 also where nobody has counted them."""
    checksums: list[Any]
    values: list[Any]
    """The text of a plain value; ``None`` of a tensor."""

    def __len__(self) -> int:
        return len(self.dtypes)

    @property
    def is_nonfinite(self) -> NDArray[np.bool_]:
        """A mask of the tensors with a value that is not finite, as far as their largest and smallest value tell."""
        high, low, *_ = self.statistics
        return high.is_nan | high.is_infinite | low.is_nan | low.is_infinite


def tensors_of(
    targets: Sequence[Item | None], goldens: Sequence[Item | None], texts: Texts
) -> tuple[TensorColumns, Integers, Integers]:
    """The columns of the items of both sides, each tensor once, and the index of each item's; -1 if there is no item.

    Args:
        targets: the items of the target.
        goldens: those of the golden run at the same places; one object where both dumps say the same of it.
        texts: takes the texts of dtypes and shapes.
    """
    try:
        found = _Descriptions(_fields)
        indexes, golden_indexes = found.of_sides(targets, goldens)
    except TypeError:
        # A value that is a list, of a file that another program wrote.
        found = _Descriptions(_hashable_fields)
        indexes, golden_indexes = found.of_sides(targets, goldens)
    columns: list[Any] = list(zip(*found.indexes)) or [()] * len(_FIELDS)
    dtypes, shapes, grad, *statistics, excluded, checksums, values = columns
    is_plain = [value is not None for value in values]
    if any(is_plain):
        # The statistics of a plain value are its text once more.
        statistics = [[None if plain else value for plain, value in zip(is_plain, column)] for column in statistics]
    # Of float64 and of integers every digit counts.
    is_narrow = {dtype: _is_narrow(dtype) for dtype in set(dtypes)}
    narrow = np.array([is_narrow[dtype] for dtype in dtypes], dtype=bool)
    high, low, mean, norm = (numbers(column, narrow) for column in statistics)
    return (
        TensorColumns(
            texts.indexes(["" if dtype is None else str(dtype) for dtype in dtypes]),
            texts.indexes(["" if shape is None else shape_text(shape) for shape in shapes]),
            [_UNKNOWN if each is None else int(bool(each)) for each in grad],
            (high, low, mean, norm),
            list(excluded),
            list(checksums),
            [_text(value) for value in values],
        ),
        indexes,
        golden_indexes,
    )


class _Descriptions:
    """Descriptions of tensors on a page, each once, in the order of their first use.

    Args:
        fields: gives the description of an item.
    """

    def __init__(self, fields: Callable[[Item], tuple[Any, ...]]) -> None:
        self._fields = fields
        self.indexes: dict[tuple[Any, ...], int] = {}

    def of_sides(self, targets: Sequence[Item | None], goldens: Sequence[Item | None]) -> tuple[Integers, Integers]:
        """The index of each item of the target and of the golden run; -1 if there is no item.

        Raises:
            TypeError: a plain value cannot be told from others.
        """
        fields, known = self._fields, self.indexes
        index = known.setdefault
        mine = [-1 if item is None else index(fields(item), len(known)) for item in targets]
        theirs = [
            same if item is target else -1 if item is None else index(fields(item), len(known))
            for same, target, item in zip(mine, targets, goldens)
        ]
        return np.array(mine, dtype=np.int64), np.array(theirs, dtype=np.int64)


def _hashable_fields(item: Item) -> tuple[Any, ...]:
    fields = _fields(item)
    return *fields[:-1], _text(fields[-1])


def _is_narrow(dtype: Any) -> bool:
    form = format_of(dtype) if isinstance(dtype, str) else None
    return form is not None and form.kind is Kind.FLOAT and form.bits < 64


def _text(value: Any) -> str | None:
    """A plain value as a user would write it; ``None`` of a tensor."""
    return None if value is None else value if type(value) is str else repr(value)


# --- stacks


class StackTable:
    """The stacks of several dumps, each once; a stack is indices of its lines."""

    def __init__(self) -> None:
        self.frames = Texts()
        self._indexes: dict[tuple[int, ...], int] = {}

    @property
    def stacks(self) -> list[tuple[int, ...]]:
        return list(self._indexes)

    def index(self, stack: tuple[int, ...]) -> int:
        """The index of a stack, given the indexes of its lines."""
        return self._indexes.setdefault(stack, len(self._indexes))

    def add(self, names: Sequence[str], stacks: Mapping[str, list[str]] | None) -> NDArray[np.int64]:
        """The index of the stack of each of `names`; -1 without one."""
        if not stacks:
            return np.full(len(names), -1, dtype=np.int64)
        # Calls from the same place share one list.
        different = {id(stack): stack for stack in stacks.values()}
        index = self.frames.index
        indexes = {key: self.index(tuple(map(index, stack))) if stack else -1 for key, stack in different.items()}
        nothing: list[str] = []
        indexes[id(nothing)] = -1
        return np.array([indexes[id(stacks.get(name, nothing))] for name in names], dtype=np.int64)
