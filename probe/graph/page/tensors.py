"""The tensors and values of a comparison, each once, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.dump.reading.items import Item, shape_text
from probe.common.numerics.formats import Kind, format_of
from probe.graph.page.numbers import NumberColumn, numbers
from probe.graph.page.texts import Texts

Integers = NDArray[np.int64]

_FIELDS = ("dtype", "shape", "requires_grad", "max", "min", "mean", "norm", "md5", "value")
_fields = attrgetter(*_FIELDS)
_UNKNOWN = -1


@dataclass
class TensorColumns:
    """Columns with an entry for each tensor or value; texts are indices."""

    dtypes: Integers
    shapes: Integers
    requires_grad: list[int]
    statistics: tuple[NumberColumn, NumberColumn, NumberColumn, NumberColumn]
    """Maximum, minimum, mean, norm."""
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


def tensors_of(items: Sequence[Item | None], texts: Texts) -> tuple[TensorColumns, Integers]:
    """The columns of `items`, each tensor once, and the index of each item's; -1 if there is no item."""
    said = [None if item is None else _fields(item) for item in items]
    try:
        found = dict.fromkeys(said)
    except TypeError:
        # A value that is a list, of a file that another program wrote.
        said = [None if fields is None else (*fields[:-1], _text(fields[-1])) for fields in said]
        found = dict.fromkeys(said)
    found.pop(None, None)
    indexes = {fields: index for index, fields in enumerate(found)}
    indexes_or_none: dict[tuple[Any, ...] | None, int] = {**indexes, None: -1}
    index_of = np.array(list(map(indexes_or_none.__getitem__, said)), dtype=np.int64)
    columns: list[Any] = list(zip(*indexes)) or [()] * len(_FIELDS)
    dtypes, shapes, grad, *statistics, checksums, values = columns
    is_plain = [value is not None for value in values]
    if any(is_plain):
        # The statistics of a plain value are its text once more.
        statistics = [[None if plain else value for plain, value in zip(is_plain, column)] for column in statistics]
    # Of float64 and of integers every digit counts.
    narrow = np.array([_is_narrow(dtype) for dtype in dtypes], dtype=bool)
    high, low, mean, norm = (numbers(column, narrow) for column in statistics)
    return (
        TensorColumns(
            texts.indexes(["" if dtype is None else str(dtype) for dtype in dtypes]),
            texts.indexes(["" if shape is None else shape_text(shape) for shape in shapes]),
            [_UNKNOWN if each is None else int(bool(each)) for each in grad],
            (high, low, mean, norm),
            list(checksums),
            [_text(value) for value in values],
        ),
        index_of,
    )


def _is_narrow(dtype: Any) -> bool:
    form = format_of(dtype) if isinstance(dtype, str) else None
    return form is not None and form.kind is Kind.FLOAT and form.bits < 64


def _text(value: Any) -> str | None:
    """A plain value as a user would write it; ``None`` of a tensor."""
    return None if value is None else value if type(value) is str else repr(value)
