"""Values in rows, a row for each sequence: the one form that all sources are brought to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.errors import MsprobeException
from probe.common.numerics.formats import is_half, plain_name

Array = NDArray[Any]
_MOST_DIMENSIONS = 3


@dataclass(frozen=True)
class Rows:
    """Numbers of several sequences, one after the other."""

    name: str
    """The name in errors: the flag or argument, or the source."""
    values: Array
    lengths: Array
    steps: Array | None = None
    """Step of each row, like the rank, where the source tells it."""
    ranks: Array | None = None
    dtype: str = ""
    """The short dtype of the source, which says that both sides may have been computed in it."""
    deep_shape: tuple[int, ...] = ()
    """The shape of an array of three dimensions, sequences, tokens and candidates; its rows are those of tokens."""


def rows_of(value: Any, name: str) -> Rows:
    """Rows of an array or tensor of one or two dimensions, or of a list of those of one dimension.

    Raises:
        MsprobeException: it has another form.
    """
    if isinstance(value, (list, tuple)) and value and not _is_number(value[0]):
        return joined([_array(each, f"{name}[{number}]") for number, each in enumerate(value)], name)
    array, dtype = _array(value, name)
    if array.ndim == 2:
        return Rows(name, array.reshape(-1), np.full(len(array), array.shape[1]), dtype=dtype)
    return joined([(array, dtype)], name)


def joined(
    parts: Sequence[tuple[Array, str]], name: str, steps: Iterable[int] = (), ranks: Iterable[int | str] = ()
) -> Rows:  # fmt: skip
    """Arrays of one dimension, a row each, or of two, with the dtypes of their sources.

    Args:
        parts: The arrays, each with the dtype of its source.
        name: As an error names them.
        steps: Of each part, as are the ranks; empty where they are not known.
    """
    lengths, flat, deep_shape = [], [], ()
    for array, _ in parts:
        if array.ndim > _MOST_DIMENSIONS:
            raise MsprobeException(f"{name}: its shape is {array.shape}; allowed: sequences, tokens and candidates.")
        if array.ndim == _MOST_DIMENSIONS:
            deep_shape, array = array.shape, array.reshape(-1, array.shape[-1])
        flat.append(array.reshape(-1))
        lengths.append(np.full(len(array), array.shape[1]) if array.ndim == 2 else np.array([array.size]))
    dtypes = {dtype for _, dtype in parts}
    counts = [len(each) for each in lengths]

    def of_rows(numbers: Iterable[int | str]) -> Array | None:
        listed = list(numbers)
        return np.repeat(np.array(listed), counts) if listed else None

    values = flat[0] if len(flat) == 1 else np.concatenate(flat) if flat else np.zeros(0, np.float32)
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    whole = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    return Rows(name, values, whole, of_rows(steps), of_rows(ranks), dtype, deep_shape)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, str, bool)) or value is None


def _array(value: Any, name: str) -> tuple[Array, str]:
    """An array of what programs have, and its dtype if it is a short one.

    Tensors of any framework say by themselves how they become arrays; those on a device are fetched.
    """
    if isinstance(value, np.ndarray):
        array, dtype = value, _name(value.dtype)
    else:
        dtype = plain_name(str(getattr(value, "dtype", "")))
        for method in ("detach", "cpu"):
            value = getattr(value, method)() if hasattr(value, method) else value
        try:
            array = _numbers(value)
        except (TypeError, RuntimeError, ValueError) as error:
            if not hasattr(value, "float"):
                raise MsprobeException(f"{name}: it is not an array of numbers: {error}.") from None
            # numpy has no bfloat16.
            array = _numbers(value.float())
    if array.ndim == 0:
        array = array.reshape(1)
    return array, short(dtype)


@cache
def _name(dtype: np.dtype[Any]) -> str:
    # numpy makes this text anew each time, which takes longer than to read the array.
    return str(dtype)


def _numbers(value: Any) -> Array:
    found = value.numpy() if hasattr(value, "numpy") else value
    # A missing number is none that is finite.
    if isinstance(found, (list, tuple)) and any(each is None for each in found):
        found = [np.nan if each is None else each for each in found]
    return np.asarray(found)


def short(dtype: str) -> str:
    """The dtype if it is a short one: what is stored in float32 may have been computed in any."""
    return dtype if dtype and is_half(dtype) else ""
