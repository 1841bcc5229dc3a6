"""The values that a case is run with: those of the files, or values generated from the statistics.

Generated values depend on the name of the record and of the tensor alone, so that a run that is filtered, divided
over processes or taken up again sees the same ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.calls.arguments import Unreadable
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import Item
from probe.common.errors import FileCheckException
from probe.common.numerics.formats import is_float, is_integer, rounding_format
from probe.common.numerics.rounding import rounded_to

Array = NDArray[Any]
_LEFT_OUT = -100
"""The label that losses leave out, by the default of every framework."""
_MASKED = -1e4
"""Below this a float tensor that ends at 0 is a mask that is added to scores."""


@dataclass(frozen=True)
class Values:
    """The contents of one tensor."""

    array: Array
    """In a dtype that holds its values exactly: float32 of a ``bfloat16``."""
    generated: bool = False


def unloaded(dump: Dump, item: Item, dtype: str, shape: tuple[int, ...], seed: int) -> Values:
    """In the place of the values of a tensor: zeros that take no memory."""
    return Values(np.broadcast_to(np.float32(0), shape))


def values_of(dump: Dump, item: Item, dtype: str, shape: tuple[int, ...], seed: int) -> Values:
    """The values of a recorded tensor.

    Raises:
        Unreadable: the dump has neither its file nor statistics from which it could be made.
        MissingDependency: the file is one of torch's, which is not installed.
    """
    if item.data_name is not None and item.data_name != "-1":
        try:
            array = dump.tensor(item)
        except FileCheckException as error:
            raise Unreadable(str(error)) from None
        if array is not None:
            if array.shape != shape:
                raise Unreadable(f"the file of {item.name} has the shape {list(array.shape)}, the record {list(shape)}")
            return Values(array)
    if 0 in shape:
        return Values(np.zeros(shape))
    if dump.task == "tensor":
        raise Unreadable(f"{item.name} has no file")
    return Values(rounded_as(_generated(item, dtype, shape, _draws(item.name, seed)), dtype), True)


def rounded_as(values: Array, dtype: str) -> Array:
    """The numbers that a tensor of this dtype holds, so that the reference is computed from the same ones."""
    form = rounding_format(dtype)
    return values if form is None or form.is_complex else rounded_to(values, form)


def _draws(name: str, seed: int) -> np.random.Generator:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _generated(item: Item, dtype: str, shape: tuple[int, ...], draws: np.random.Generator) -> Array:
    low, high = _number(item.min), _number(item.max)
    if low is None or high is None:
        raise Unreadable(f'{item.name} has no statistics; collect with "tensor"')
    if dtype == "bool":
        return draws.integers(int(low), int(high) + 1, shape).astype(bool)
    if is_integer(dtype):
        return _whole_numbers(int(low), int(high), shape, draws)
    if not is_float(dtype):
        raise Unreadable(f'{item.name} is {dtype}, and its statistics say too little; collect with "tensor"')
    return _generated_floats(item, low, high, dtype, shape, draws)


def _whole_numbers(low: int, high: int, shape: tuple[int, ...], draws: np.random.Generator) -> Array:
    if low == _LEFT_OUT and high >= 0:
        # Labels are no other negative numbers.
        labels = draws.integers(0, high, shape, np.int64, endpoint=True)
        return _ends(np.asarray(labels), low, high)
    return _ends(np.asarray(draws.integers(low, high, shape, np.int64, endpoint=True)), low, high)


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, (bool, int, float)) else None


def _ends(values: Array, low: Any, high: Any) -> Array:
    """`values` with the extremes of the record in its first and last place."""
    flat = values.reshape(-1)
    flat[0], flat[-1] = low, high
    return values


def _generated_floats(
    item: Item, low: float, high: float, dtype: str, shape: tuple[int, ...], draws: np.random.Generator
) -> Array:
    special = [value for value in (low, high) if not np.isfinite(value)]
    if item.nonfinite or special:
        low, high = _finite_range(item, low, high)
    if item.max == 0 and (low <= _MASKED or -np.inf in special):
        return _mask(shape, -np.inf if special else low, draws)
    # A range as wide as all of float64 has no width in float64.
    values = _ends(np.asarray(2 * draws.uniform(low / 2, high / 2, shape)), low, high)
    for index, value in enumerate(special[: values.size]):
        values.reshape(-1)[-1 - index if value > 0 else index] = value
    return values


def _finite_range(item: Item, low: float, high: float) -> tuple[float, float]:
    """Between which values the finite elements lie, as far as the record says; otherwise next to what it says."""
    finite = [each for each in (item.finite_min, item.finite_max, low, high) if each is not None and np.isfinite(each)]
    known = finite or [0.0]
    first = item.finite_min if item.finite_min is not None else low
    last = item.finite_max if item.finite_max is not None else high
    width = max(1.0, abs(known[0]))
    first = first if np.isfinite(first) else min(known) - (width if len(set(known)) == 1 and finite else 0.0)
    return first, last if np.isfinite(last) else max(*known, first)


def _mask(shape: tuple[int, ...], low: float, draws: np.random.Generator) -> Array:
    """A mask to be added to scores: causal over two last dimensions, otherwise at the end of the last one.

    No row is masked as a whole, which would make NaN of it.
    """
    if len(shape) >= 2 and shape[-2] > 1:
        rows, columns = shape[-2:]
        allowed = np.tri(rows, columns, max(columns - rows, 0), dtype=bool)
        return np.broadcast_to(np.where(allowed, 0.0, low), shape).copy()
    values = np.zeros(shape)
    masked = int(draws.integers(0, shape[-1])) if shape else 0
    if masked:
        values[..., -masked:] = low
    return values
