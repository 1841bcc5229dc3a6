"""The amount by which the values of two tensors differ.

Sums are taken in float64. Relative errors are taken in the wider of the two types and at least in float32, as msProbe
does, because their threshold counts near it.

Large tensors are read from memory once: a block of both goes through everything that is asked for while it is in the
cache of a processor. That takes a fifth of the time of one metric after the other.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics.formats import Format
from probe.common.numerics.statistics import NOT_AVAILABLE, SHAPE_UNMATCHED, SPECIAL_VALUES_DIFFER, UNSUPPORTED

_compiled: Callable[[int, int, int, float, float, float, float], tuple[float, ...]] | None
try:
    from probe.common.numerics import _differences
except ImportError:
    _compiled = None
else:
    _compiled = _differences.differences


class Sums(NamedTuple):
    """Numbers of a block of both vectors; squares that are not finite say that a value is not."""

    squares_one: float
    squares_other: float
    products: float
    squares: float
    """Sum of the squares of the differences."""
    largest: float
    largest_relative: float
    """Relative to the second vector, in float32."""
    most_units: float
    """The largest difference in units in the last place of the format."""
    units: float
    """The sum of these."""
    not_multiples: float
    """The number of elements that are not the factor times those of the other vector, up to the relative error."""


def differences(
    one: NDArray[Any], other: NDArray[Any], of: Format | None, factor: float = 0.0, error: float = 0.0
) -> Sums | None:
    """The numbers of two vectors of one length; ``None`` if there is no compiled function for them.

    Args:
        one: The first vector, in float32; there is no compiled function for another dtype.
        other: The second vector, in float32.
        of: The format whose units in the last place count; ``None`` counts none.
        factor: The factor that the first vector may be the second one times.
        error: The relative error with which it may be.
    """
    if _compiled is None or not one.dtype == other.dtype == np.float32 or (of is not None and of.tapers):
        return None
    one, other = np.ascontiguousarray(one), np.ascontiguousarray(other)
    smallest, unit = (1.0, 1.0) if of is None else (float(of.smallest_normal), 2.0 * of.unit)
    return Sums(*_compiled(one.ctypes.data, other.ctypes.data, one.size, smallest, unit, factor, error))


# --- values


Cell = Union[float, str]
Array = NDArray[Any]

BLOCK = 1 << 16
"""Elements that are measured at once."""
_LONGEST_PRODUCT = 1 << 13
"""OpenBLAS starts threads for longer ones, which wait for each other longer than they work."""
_LIMITS = (0.001, 0.005)
_TINY = float(np.finfo(np.float64).eps)


class Measured(NamedTuple):
    """Cosine, euclidean distance, largest absolute and relative error, shares below 0.001 and 0.005; and a note."""

    metrics: tuple[Cell, ...]
    note: str = ""
    special_values_differ: bool = False
    """True if NaN or infinities are where the other tensor has none."""


def compare_values(target: Array, golden: Array, signed: bool = True) -> Measured:
    """The six metrics of two tensors; a text stands where one is not defined.

    Args:
        target, golden: The values.
        signed: True if infinities of two signs differ.
    """
    target, golden = np.squeeze(target), np.squeeze(golden)
    if target.size == 0:
        return Measured(UNSUPPORTED if target.shape == golden.shape else SHAPE_UNMATCHED)
    if target.shape != golden.shape:
        return Measured(SHAPE_UNMATCHED)
    if target.ndim == 0:
        _, _, *errors, _, _ = _add_up(*_floating(target, golden)).metrics()
        metrics = ("unsupported", "unsupported", *errors, "unsupported", "unsupported")
        if _same_positions(*_floating(target, golden), signed):
            return Measured(metrics)
        return Measured(metrics, SPECIAL_VALUES_DIFFER, True)
    target, golden = target.reshape(-1), golden.reshape(-1)
    totals = _add_up(target, golden)
    if not totals.is_finite and not (_all_finite(target) and _all_finite(golden)):
        target, golden = _floating(target, golden)
        if not _same_positions(target, golden, signed):
            return Measured(NOT_AVAILABLE, SPECIAL_VALUES_DIFFER, True)
        totals = _add_up(*_without_special(target, golden))
    return Measured(totals.metrics())


def as_measured(target: Array, golden: Array) -> tuple[Array, Array]:
    """The two as the metrics see them, where they can be compared at all.

    Dimensions of size 1 are gone, both have the wider of their floating types and at least float32, and what is NaN
    or infinite in both is 0. Complex numbers are pairs in a last dimension of size 2.
    """
    target, golden = np.squeeze(target), np.squeeze(golden)
    shape = target.shape
    target, golden = _floating(target, golden)
    if shape:
        target, golden = _without_special(target, golden)
    if target.size != math.prod(shape):
        shape = (*shape, 2)
    return target.reshape(shape), golden.reshape(shape)


def _all_finite(values: Array) -> bool:
    if values.dtype.kind not in "fc":
        return True
    blocks = (values[start : start + BLOCK] for start in range(0, values.size, BLOCK))
    return all(np.isfinite(block).all() for block in blocks)


def _same_positions(target: Array, golden: Array, signed: bool) -> bool:
    if not np.array_equal(np.isnan(target), np.isnan(golden)):
        return False
    if not signed:
        return np.array_equal(np.isinf(target), np.isinf(golden))
    return all(np.array_equal(kind(target), kind(golden)) for kind in (np.isposinf, np.isneginf))


def _without_special(target: Array, golden: Array) -> tuple[Array, Array]:
    """Two arrays with 0 where one is NaN or infinite."""
    special = ~np.isfinite(target) | ~np.isfinite(golden)
    return (np.where(special, 0, target), np.where(special, 0, golden)) if special.any() else (target, golden)


def _floating(target: Array, golden: Array) -> tuple[Array, Array]:
    """Two arrays in the wider type, at least float32; complex values as pairs of numbers."""
    if target.dtype.kind == "c" or golden.dtype.kind == "c":
        return _pairs(target), _pairs(golden)
    floats = [array.dtype for array in (target, golden) if array.dtype.kind == "f"]
    kind = np.result_type(np.float32, *floats)
    return target.astype(kind, copy=False).reshape(-1), golden.astype(kind, copy=False).reshape(-1)


def _pairs(array: Array) -> Array:
    return array.astype(np.complex128).reshape(-1).view(np.float64)


def _add_up(target: Array, golden: Array) -> Totals:
    """The totals of two vectors."""
    totals = Totals()
    with np.errstate(all="ignore"):
        step = BLOCK // 2 if "c" in (target.dtype.kind, golden.dtype.kind) else BLOCK
        for start in range(0, target.size, step):
            totals.add(*_floating(target[start : start + step], golden[start : start + step]))
    return totals


class _Memory(threading.local):
    """Memory for work on blocks; taking it anew from the system for each block would double the time."""

    def __init__(self) -> None:
        self.wide_target, self.wide_golden, self.error, self.size = np.empty((4, BLOCK))


_memory = _Memory()


class Distances(NamedTuple):
    """The amount by which two vectors differ, not rounded; `cosine` is NaN where one of them is zero alone."""

    largest: float
    largest_relative: float
    euclidean: float
    relative: float
    """The euclidean distance, relative to the longer vector."""
    cosine: float


class Totals:
    """The sums over blocks of two vectors."""

    def __init__(self) -> None:
        self._count = 0
        self._squares_target = self._squares_golden = self._products = self._squares_difference = 0.0
        self._largest = self._largest_relative = 0.0
        self._below = [0] * len(_LIMITS)

    def add(self, target: Array, golden: Array) -> None:
        """Count in a block of both, which are of one floating type."""
        size = target.size
        wide_target, wide_golden = _memory.wide_target[:size], _memory.wide_golden[:size]
        np.copyto(wide_target, target)
        np.copyto(wide_golden, golden)
        self._count += size
        self._squares_target += _product(wide_target, wide_target)
        self._squares_golden += _product(wide_golden, wide_golden)
        self._products += _product(wide_target, wide_golden)
        difference = np.subtract(wide_target, wide_golden, out=wide_target)
        self._squares_difference += _product(difference, difference)
        self._largest = _larger(self._largest, np.abs(difference, out=difference).max())
        relative = _relative(target, golden)
        worst = relative.max()
        self._largest_relative = _larger(self._largest_relative, worst)
        for index, limit in enumerate(_LIMITS):
            self._below[index] += size if worst < limit else int(np.count_nonzero(relative < limit))

    def add_sums(self, sums: Sums, size: int) -> None:
        """Count in a block by what a compiled function found of it; `distances` are right then, and not `metrics`."""
        self._count += size
        self._squares_target += sums.squares_one
        self._squares_golden += sums.squares_other
        self._products += sums.products
        self._squares_difference += sums.squares
        self._largest = max(self._largest, sums.largest)
        self._largest_relative = max(self._largest_relative, sums.largest_relative)

    @property
    def squares(self) -> tuple[float, float, float]:
        """The sums of the squares of the first, of the second, and of the products of both."""
        return self._squares_target, self._squares_golden, self._products

    @property
    def is_finite(self) -> bool:
        """``False`` where NaN or an infinity was among the values, and where squares of float64 are too large."""
        return math.isfinite(self._squares_target) and math.isfinite(self._squares_golden)

    def distances(self) -> Distances:
        """The distances of all blocks together."""
        euclidean = math.sqrt(self._squares_difference)
        target, golden = math.sqrt(self._squares_target), math.sqrt(self._squares_golden)
        longer = max(target, golden)
        if target and golden:
            cosine = min(max(self._products / target / golden, -1.0), 1.0)
        else:
            cosine = math.nan if target or golden else 1.0
        relative = euclidean / longer if longer else euclidean
        return Distances(self._largest, self._largest_relative, euclidean, relative, cosine)

    def metrics(self) -> tuple[Cell, ...]:
        return (
            self._cosine(),
            math.sqrt(self._squares_difference),
            _cell(self._largest),
            _cell(self._largest_relative),
            *(below / self._count for below in self._below),
        )

    def _cosine(self) -> Cell:
        length_target, length_golden = math.sqrt(self._squares_target), math.sqrt(self._squares_golden)
        if length_target <= _TINY and length_golden <= _TINY:
            return 1.0
        if length_target <= _TINY or length_golden <= _TINY:
            return "Nan"
        cosine = self._products / (length_target * length_golden)
        if math.isnan(cosine):
            return "Nan"
        return round(cosine, 6 if cosine > 0.9999 else 12)


def _product(first: Array, second: Array) -> float:
    starts = range(0, first.size, _LONGEST_PRODUCT)
    return math.fsum(np.dot(first[i : i + _LONGEST_PRODUCT], second[i : i + _LONGEST_PRODUCT]) for i in starts)


def _relative(target: Array, golden: Array) -> Array:
    """Relative errors, at most `BLOCK`; where `golden` is zero machine epsilon is added to both."""
    error, size = (_part(memory, target.dtype, target.size) for memory in (_memory.error, _memory.size))
    np.abs(golden, out=size)
    if size.min() == 0:
        zero = golden == 0
        tiny = np.finfo(golden.dtype).eps
        target, golden = np.where(zero, target + tiny, target), np.where(zero, tiny, golden)
        np.abs(golden, out=size)
    np.subtract(target, golden, out=error)
    np.abs(error, out=error)
    return np.divide(error, size, out=error)


def _part(memory: Array, dtype: np.dtype[Any], size: int) -> Array:
    return memory.view(dtype)[:size] if dtype.itemsize <= memory.itemsize else np.empty(size, dtype)


def _larger(found: float, other: Any) -> float:
    """The larger of both, NaN when one is."""
    return float(other) if other > found or other != other else found


def _cell(value: float) -> Cell:
    return "Nan" if math.isnan(value) else round(value, 12)
