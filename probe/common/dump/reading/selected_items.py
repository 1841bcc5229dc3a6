"""Items that were chosen from one or several dumps: a sequence, a table for pandas or polars, a table for notebooks."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, overload

from probe.common import html_table
from probe.common.dump import naming
from probe.common.dump.reading.items import Item, shape_text
from probe.common.errors import MissingDependency, MsprobeException

FRAME_LIBRARIES = ("polars", "pandas")
"""The libraries that `Selection.to_frame` serves; the first that is installed, unless one is named."""
_SHOWN = 50
"""Rows in a table for notebooks; a guess."""
_LONGEST_VALUE = 80
"""Characters of a value in it; a guess."""
# Of a column of whole numbers.
_LARGEST = 2**63 - 1


class Selected(NamedTuple):
    """An item and where it stands."""

    step: int | None
    rank: int | None
    process: str | None
    """``proc123`` of a process without a rank."""
    mode: str | None
    """``graph`` or ``pynative``, where MindSpore wrote folders of these names."""
    record: str
    module: str | None
    """The innermost module around the call, or the call if it is one."""
    item: Item

    @property
    def path(self) -> str:
        """The place of the item in its record: ``input.0``, ``parameters.weight``."""
        return self.item.name[len(self.record) + 1 :] if self.item.name != self.record else self.item.state


class Selection(Sequence[Item]):
    """Items in the order of their dumps."""

    def __init__(self, rows: Iterable[Selected]) -> None:
        self.rows = list(rows)
        """The items with step, rank, record and module."""

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Selection: ...

    def __getitem__(self, index: int | slice) -> Item | Selection:
        return Selection(self.rows[index]) if isinstance(index, slice) else self.rows[index].item

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        names = ", ".join(row.item.name for row in self.rows[:3])
        return f"<{_count(self)}{f': {names}' if names else ''}{', ...' if len(self) > 3 else ''}>"

    def to_frame(self, library: str | None = None) -> Any:
        """The items as a data frame, a row for each.

        Columns: ``step``, ``rank`` (whole numbers, missing where the path does not say); ``process`` (``proc123`` of a
        process without a rank); ``mode`` (``graph`` or ``pynative`` of MindSpore); ``record``; ``base``, ``number``,
        ``direction`` (the name of the record taken apart); ``module`` (the innermost around the call, as
        ``Module.layers.0.fc.Linear``); ``item`` (``input.0``); ``state``; ``dtype``; ``shape`` (a text, ``[2, 3]``);
        ``elements``; ``max``, ``min``, ``mean``, ``norm`` (numbers, of tensors only); ``requires_grad``; ``md5``;
        ``value`` (the text of a plain value); ``data_name``.

        Args:
            library: ``polars`` or ``pandas``; by default the first of them that is installed.

        Raises:
            MissingDependency: it is not installed.
        """
        chosen = installed_library(library)
        columns = {column: [take(row) for row in self.rows] for column, take in _COLUMNS.items()}
        found = importlib.import_module(chosen)
        if chosen == "polars":
            types = {column: getattr(found, _POLARS.get(column, "String")) for column in columns}
            return found.DataFrame(columns, schema=types)
        types = {column: _PANDAS.get(column, "object") for column in columns}
        return found.DataFrame({name: found.Series(values, dtype=types[name]) for name, values in columns.items()})

    def _repr_html_(self) -> str:
        more = len(self) - _SHOWN
        rest = html_table.paragraph(f"and {more} more; to_frame() has them all") if more > 0 else ""
        return html_table.paragraph(_count(self)) + self[:_SHOWN].html_rows() + rest

    def html_rows(self) -> str:
        """All items as a table for notebooks."""
        where = self._columns_of_processes()
        columns = (*where, "item", "type", "shape", "Max", "Min", "Mean", "Norm", "value")
        rows = [(*(getattr(row, column) for column in where), *_shown(row.item)) for row in self.rows]
        return html_table.table(columns, rows)

    def _columns_of_processes(self) -> list[str]:
        """The columns that tell the items of several dumps from each other; none where they are of one."""
        if len({(row.step, row.rank, row.process, row.mode) for row in self.rows}) < 2:
            return []
        of_folders = [column for column in ("process", "mode") if any(getattr(row, column) for row in self.rows)]
        return ["step", "rank", *of_folders]


def _count(items: Selection) -> str:
    return "1 item" if len(items) == 1 else f"{len(items)} items"


def installed_library(library: str | None) -> str:
    """The library that makes a frame: `library`, or else the first of `FRAME_LIBRARIES` that is installed.

    Raises:
        MsprobeException: there is no such library.
        MissingDependency: it is not installed.
    """
    if library is not None and library not in FRAME_LIBRARIES:
        raise MsprobeException(f"{library!r} is no library for data frames; allowed: {', '.join(FRAME_LIBRARIES)}.")
    wanted = FRAME_LIBRARIES if library is None else (library,)
    for name in wanted:
        if importlib.util.find_spec(name) is not None:
            return name
    raise MissingDependency(f"a data frame needs {' or '.join(wanted)}; run: pip install {wanted[0]}")


def statistics(item: Item) -> tuple[float | None, ...]:
    """Max, Min, Mean and Norm of a tensor as floats; ``None`` where there is none, and of a plain value."""
    if not item.is_tensor:
        return (None, None, None, None)
    return tuple(map(_number, (item.max, item.min, item.mean, item.norm)))


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:
        return None


def number_text(value: float | None) -> str:
    """A statistic as tables for people show it."""
    return "" if value is None else f"{value:.4g}"


def _shown(item: Item) -> tuple[str, ...]:
    numbers = map(number_text, statistics(item))
    shape = "" if item.shape is None or not item.is_tensor else shape_text(item.shape)
    value = "" if item.value is None else str(item.value)[:_LONGEST_VALUE]
    return (item.name, item.dtype or "", shape, *numbers, value)


# The items of a record stand together.
_parse = lru_cache(maxsize=64)(naming.parse)


def _parsed(part: str) -> Callable[[Selected], Any]:
    def take(row: Selected) -> Any:
        parsed = _parse(row.record)
        return None if parsed is None else getattr(parsed, part)

    return take


def _module(row: Selected) -> str | None:
    parsed = None if row.module is None else _parse(row.module)
    return row.module if parsed is None else parsed.base


def _elements(row: Selected) -> int | None:
    number = math.prod(row.item.shape) if row.item.is_tensor and row.item.shape is not None else None
    return None if number is None or number > _LARGEST else number


def _statistic(index: int) -> Callable[[Selected], float | None]:
    return lambda row: statistics(row.item)[index]


_COLUMNS: dict[str, Callable[[Selected], Any]] = {
    "step": lambda row: row.step,
    "rank": lambda row: row.rank,
    "process": lambda row: row.process,
    "mode": lambda row: row.mode,
    "record": lambda row: row.record,
    "base": _parsed("base"),
    "number": _parsed("number"),
    "direction": _parsed("direction"),
    "module": _module,
    "item": lambda row: row.path,
    "state": lambda row: row.item.state,
    "dtype": lambda row: row.item.dtype,
    "shape": lambda row: None if row.item.shape is None else shape_text(row.item.shape),
    "elements": _elements,
    **{name: _statistic(index) for index, name in enumerate(("max", "min", "mean", "norm"))},
    "requires_grad": lambda row: row.item.requires_grad if isinstance(row.item.requires_grad, bool) else None,
    "md5": lambda row: row.item.md5,
    "value": lambda row: None if row.item.value is None else str(row.item.value),
    "data_name": lambda row: row.item.data_name,
}
_STATISTICS = ("max", "min", "mean", "norm")
_WHOLE = ("step", "rank", "number", "elements")
_POLARS = {**dict.fromkeys(_WHOLE, "Int64"), **dict.fromkeys(_STATISTICS, "Float64"), "requires_grad": "Boolean"}
_PANDAS = {**dict.fromkeys(_WHOLE, "Int64"), **dict.fromkeys(_STATISTICS, "float64"), "requires_grad": "boolean"}
