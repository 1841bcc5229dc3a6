"""How far the values of two tensors are apart.

Sums are taken in float64. Relative errors are taken in the wider of the two types and at least in float32, as the
reference tool does, because their threshold counts near it.

Large tensors are read from memory once: a block of both goes through everything that is asked for while it is in the
cache of a processor. That takes a fifth of the time of one metric after the other.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from probe.common.metrics.missing import NOT_AVAILABLE, SHAPE_UNMATCHED, UNSUPPORTED

Cell = Union[float, str]
Array = NDArray[Any]

SPECIAL_APART = "error: nan or inf of NPU and Bench are not in the same places."
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
    special_apart: bool = False
    """Whether NaN or infinities are where the other tensor has none."""


def compare_values(target: Array, golden: Array, compat: bool = False) -> Measured:
    """The six metrics of two tensors; a text stands where one is not defined."""
    n, b = np.squeeze(target), np.squeeze(golden)
    if n.size == 0:
        return Measured(UNSUPPORTED if n.shape == b.shape or compat else SHAPE_UNMATCHED)
    if n.shape != b.shape:
        return Measured(SHAPE_UNMATCHED)
    if n.ndim == 0:
        _, _, *errors, _, _ = _add_up(*_floating(n, b)).metrics()
        metrics = ("unsupported", "unsupported", *errors, "unsupported", "unsupported")
        return Measured(metrics) if _same_places(*_floating(n, b), compat) else Measured(metrics, SPECIAL_APART, True)
    n, b = n.reshape(-1), b.reshape(-1)
    totals = _add_up(n, b)
    if not totals.is_finite and not (_all_finite(n) and _all_finite(b)):
        n, b = _floating(n, b)
        if not _same_places(n, b, compat):
            return Measured(NOT_AVAILABLE, SPECIAL_APART, True)
        totals = _add_up(*_without_special(n, b))
    return Measured(totals.metrics())


def as_measured(target: Array, golden: Array) -> tuple[Array, Array]:
    """The two as the metrics see them, where they can be compared at all.

    Dimensions of size 1 are gone, both have the wider of their floating types and at least float32, and what is NaN
    or infinite in both is 0. Complex numbers are pairs in a last dimension of size 2.
    """
    n, b = np.squeeze(target), np.squeeze(golden)
    shape = n.shape
    n, b = _floating(n, b)
    if shape:
        n, b = _without_special(n, b)
    if n.size != math.prod(shape):
        shape = (*shape, 2)
    return n.reshape(shape), b.reshape(shape)


def _all_finite(values: Array) -> bool:
    if values.dtype.kind not in "fc":
        return True
    blocks = (values[start : start + BLOCK] for start in range(0, values.size, BLOCK))
    return all(np.isfinite(block).all() for block in blocks)


def _same_places(n: Array, b: Array, compat: bool) -> bool:
    if not np.array_equal(np.isnan(n), np.isnan(b)):
        return False
    if compat:
        return np.array_equal(np.isinf(n), np.isinf(b))
    return np.array_equal(np.isposinf(n), np.isposinf(b)) and np.array_equal(np.isneginf(n), np.isneginf(b))


def _without_special(n: Array, b: Array) -> tuple[Array, Array]:
    """Both with 0 where one is NaN or infinite."""
    special = ~np.isfinite(n) | ~np.isfinite(b)
    return (np.where(special, 0, n), np.where(special, 0, b)) if special.any() else (n, b)


def _floating(n: Array, b: Array) -> tuple[Array, Array]:
    """Both in the wider type, at least float32; complex values as pairs of numbers."""
    if n.dtype.kind == "c" or b.dtype.kind == "c":
        return _pairs(n), _pairs(b)
    floats = [array.dtype for array in (n, b) if array.dtype.kind == "f"]
    kind = np.result_type(np.float32, *floats)
    return n.astype(kind, copy=False).reshape(-1), b.astype(kind, copy=False).reshape(-1)


def _pairs(array: Array) -> Array:
    return array.astype(np.complex128).reshape(-1).view(np.float64)


def _add_up(n: Array, b: Array) -> _Totals:
    """The totals of two vectors."""
    totals = _Totals()
    with np.errstate(all="ignore"):
        step = BLOCK // 2 if "c" in (n.dtype.kind, b.dtype.kind) else BLOCK
        for start in range(0, n.size, step):
            totals.add(*_floating(n[start : start + step], b[start : start + step]))
    return totals


class _Memory(threading.local):
    """Where blocks are worked on; taking it anew from the system for each would double the time."""

    def __init__(self) -> None:
        self.wide_n, self.wide_b, self.error, self.size = np.empty((4, BLOCK))


_memory = _Memory()


class _Totals:
    """What blocks of two vectors come to together."""

    def __init__(self) -> None:
        self._count = 0
        self._squares_n = self._squares_b = self._products = self._squares_apart = 0.0
        self._largest = self._largest_relative = 0.0
        self._below = [0] * len(_LIMITS)

    def add(self, n: Array, b: Array) -> None:
        """Count in a block of both, which are of one floating type."""
        size = n.size
        wide_n, wide_b = _memory.wide_n[:size], _memory.wide_b[:size]
        np.copyto(wide_n, n)
        np.copyto(wide_b, b)
        self._count += size
        self._squares_n += _product(wide_n, wide_n)
        self._squares_b += _product(wide_b, wide_b)
        self._products += _product(wide_n, wide_b)
        apart = np.subtract(wide_n, wide_b, out=wide_n)
        self._squares_apart += _product(apart, apart)
        self._largest = _larger(self._largest, np.abs(apart, out=apart).max())
        relative = _relative(n, b)
        worst = relative.max()
        self._largest_relative = _larger(self._largest_relative, worst)
        for place, limit in enumerate(_LIMITS):
            self._below[place] += size if worst < limit else int(np.count_nonzero(relative < limit))

    @property
    def is_finite(self) -> bool:
        """``False`` where NaN or an infinity was among the values, and where squares of float64 are too large."""
        return math.isfinite(self._squares_n) and math.isfinite(self._squares_b)

    def metrics(self) -> tuple[Cell, ...]:
        return (
            self._cosine(),
            math.sqrt(self._squares_apart),
            _cell(self._largest),
            _cell(self._largest_relative),
            *(below / self._count for below in self._below),
        )

    def _cosine(self) -> Cell:
        length_n, length_b = math.sqrt(self._squares_n), math.sqrt(self._squares_b)
        if length_n <= _TINY and length_b <= _TINY:
            return 1.0
        if length_n <= _TINY or length_b <= _TINY:
            return "Nan"
        cosine = self._products / (length_n * length_b)
        if math.isnan(cosine):
            return "Nan"
        return round(cosine, 6 if cosine > 0.9999 else 12)


def _product(n: Array, b: Array) -> float:
    starts = range(0, n.size, _LONGEST_PRODUCT)
    return math.fsum(np.dot(n[i : i + _LONGEST_PRODUCT], b[i : i + _LONGEST_PRODUCT]) for i in starts)


def _relative(n: Array, b: Array) -> Array:
    """Relative errors, at most `BLOCK`; where `b` is zero machine epsilon is added to both."""
    error, size = (_part(memory, n.dtype, n.size) for memory in (_memory.error, _memory.size))
    np.abs(b, out=size)
    if size.min() == 0:
        zero = b == 0
        tiny = np.finfo(b.dtype).eps
        n, b = np.where(zero, n + tiny, n), np.where(zero, tiny, b)
        np.abs(b, out=size)
    np.subtract(n, b, out=error)
    np.abs(error, out=error)
    return np.divide(error, size, out=error)


def _part(memory: Array, dtype: np.dtype[Any], size: int) -> Array:
    return memory.view(dtype)[:size] if dtype.itemsize <= memory.itemsize else np.empty(size, dtype)


def _larger(found: float, other: Any) -> float:
    """The larger of both, NaN when one is."""
    return float(other) if other > found or other != other else found


def _cell(value: float) -> Cell:
    return "Nan" if math.isnan(value) else round(value, 12)
