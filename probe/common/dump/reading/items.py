"""An item: one tensor or plain value of one call, named as its file would be.

``<record>.input.0``, ``<record>.input.dim``, ``<record>.output.1.hidden``, ``<record>.parameters.weight``. What has no
form in a dump is an item without data, so that positions keep their meaning; an empty list or dictionary is none.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional

import msgspec

if TYPE_CHECKING:
    # Statistics and checksums are read without numpy.
    from probe.common.numerics.sketch import Sketch

Shape = tuple[int, ...]

INPUT, OUTPUT, PARAMETERS, PARAMETERS_GRAD, DEBUG = "input", "output", "parameters", "parameters_grad", "debug"


_MOST = 1 << 63
"""No tensor has so many elements, or such a size."""


class Item(msgspec.Struct, gc=False):
    """One tensor or value. A field is ``None`` where the dump says nothing."""

    name: str
    state: str
    """The part of the call: ``input``, ``output``, ``parameters``, ``parameters_grad``, ``debug``."""
    dtype: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """``torch.float32``, ``Float32``; of a plain value its class: ``<class 'int'>``."""
    shape: Optional[Shape] = None  # noqa: UP045
    """``(2, 3)``; of a plain value ``()``."""
    max: Any = None
    """The largest value, as min, mean and norm a number, or the text of a plain value."""
    min: Any = None
    mean: Any = None
    norm: Any = None
    requires_grad: Optional[bool] = None  # noqa: UP045
    md5: Optional[str] = None  # noqa: UP045
    data_name: Optional[str] = None  # noqa: UP045
    """The tensor's file in the data folder."""
    value: Any = None
    """A plain value itself; ``None`` of a tensor."""
    peer: Optional[tuple[Any, ...]] = None  # noqa: UP045
    """Operation, peer, tag and group of a point-to-point operation."""
    nonfinite: Optional[int] = None  # noqa: UP045
    """The number of elements that are NaN or infinite, where the dump counted them and there are some."""
    finite_max: Optional[float] = None  # noqa: UP045
    """The greatest finite element of such a tensor; ``None`` where there is none."""
    finite_min: Optional[float] = None  # noqa: UP045
    table: Any = None
    """The `SketchTable` of the dump, which sketch and maker are asked of."""

    @property
    def sketch(self) -> Sketch | None:
        """The sketch of the tensor; ``None`` where the dump has none."""
        found: Sketch | None = None if self.table is None else self.table.sketch(self.name)
        return found

    @property
    def made_by(self) -> str | None:
        """The item that returned this tensor, a parameter, a buffer, or data; ``None`` where that is not known."""
        found: str | None = None if self.table is None else self.table.made_by(self.name)
        return found

    @property
    def is_tensor(self) -> bool:
        return self.dtype is not None and self.value is None

    @property
    def has_nan(self) -> bool:
        """True if a NaN is in the tensor, as far as its statistics tell."""
        if not self.is_tensor:
            return False
        if is_nan(self.max) or is_nan(self.min):
            return True
        # Of an infinity beside a negative one the mean is a NaN that is not in the tensor. Where Max and Min of a
        # device leave NaN out, the count still has it.
        return (is_nan(self.mean) or bool(self.nonfinite)) and not self.has_inf

    @property
    def has_inf(self) -> bool:
        """True if an infinity is in the tensor; a norm alone can be one because its type ends before it."""
        return self.is_tensor and (is_inf(self.max) or is_inf(self.min))


def plain_item(name: str, state: str, dtype: str, shape: Shape | None, statistic: Any, value: Any) -> Item:
    """The item of a plain value: all four statistics are the same."""
    return Item(name, state, dtype, shape, statistic, statistic, statistic, statistic, None, None, None, value)


def is_nan(value: Any) -> bool:
    """True if a statistic is NaN."""
    return type(value) is float and value != value


def is_inf(value: Any) -> bool:
    """True if a statistic is an infinity."""
    return type(value) is float and math.isinf(value)


def as_shape(value: Any) -> Shape | None:
    """The shape that a list of JSON stands for; ``None`` where it stands for none."""
    if type(value) is not list or not all(type(size) is int for size in value):
        return None
    return tuple(value) if -_MOST < math.prod(value) < _MOST and all(-_MOST < size < _MOST for size in value) else None


@lru_cache(maxsize=4096)
def shape_text(shape: Shape) -> str:
    """A shape as dumps, tables and messages write it.

    Example:
        >>> shape_text((2, 3))
        '[2, 3]'
    """
    return str(list(shape))
