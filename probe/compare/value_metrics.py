"""How far the values of two tensors are apart.

Sums are taken in float64. Relative errors are taken in the wider of the two types and at least in float32, as the
reference tool does, because their threshold counts near it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from probe.compare.result import UNSUPPORTED

Cell = Union[float, str]
Array = NDArray[Any]

SHAPE_UNMATCHED = ("shape unmatched",) * 6
NOT_AVAILABLE = ("N/A",) * 6
NOT_MEASURED = (UNSUPPORTED, SHAPE_UNMATCHED, NOT_AVAILABLE)
"""The metrics of two tensors that cannot be compared."""
_TINY = float(np.finfo(np.float64).eps)


class Measured(NamedTuple):
    """Cosine, euclidean distance, largest absolute and relative error, shares below 0.001 and 0.005; and a note."""

    metrics: tuple[Cell, ...]
    note: str = ""


def compare_values(target: Array, golden: Array, compat: bool = False) -> Measured:
    """The six metrics of two tensors; a text stands where one is not defined."""
    n, b = np.squeeze(target), np.squeeze(golden)
    if n.size == 0:
        return Measured(UNSUPPORTED if n.shape == b.shape or compat else SHAPE_UNMATCHED)
    if n.shape != b.shape:
        return Measured(SHAPE_UNMATCHED)
    if n.ndim == 0:
        wide, reference = _wide(n), _wide(b)
        with np.errstate(all="ignore"):
            error = _cell(np.abs(wide - reference).max())
        relative_error = _cell(_relative(n, b).max())
        return Measured(("unsupported", "unsupported", error, relative_error, "unsupported", "unsupported"))
    n, b = _floating(n, b)
    special = ~np.isfinite(n) | ~np.isfinite(b)
    if special.any():
        if not _same_places(n, b, compat):
            return Measured(NOT_AVAILABLE, "error: nan or inf of NPU and Bench are not in the same places.")
        n, b = np.where(special, 0, n), np.where(special, 0, b)
    relative = _relative(n, b)
    wide, reference = _wide(n), _wide(b)
    apart = wide - reference
    size = relative.size
    return Measured(
        (
            _cosine(wide, reference),
            float(np.sqrt(np.dot(apart, apart))),
            _cell(np.abs(apart).max()),
            _cell(relative.max()),
            float(np.count_nonzero(relative < 0.001) / size),
            float(np.count_nonzero(relative < 0.005) / size),
        )
    )


def as_measured(target: Array, golden: Array) -> tuple[Array, Array]:
    """The two as the metrics see them, where they can be compared at all.

    Dimensions of size 1 are gone, both have the wider of their floating types and at least float32, and what is NaN
    or infinite in both is 0. Complex numbers are pairs in a last dimension of size 2.
    """
    n, b = np.squeeze(target), np.squeeze(golden)
    shape = n.shape
    n, b = _floating(n, b)
    special = ~np.isfinite(n) | ~np.isfinite(b)
    if shape and special.any():
        n, b = np.where(special, 0, n), np.where(special, 0, b)
    if n.size != math.prod(shape):
        shape = (*shape, 2)
    return n.reshape(shape), b.reshape(shape)


def _same_places(n: Array, b: Array, compat: bool) -> bool:
    if not np.array_equal(np.isnan(n), np.isnan(b)):
        return False
    if compat:
        return np.array_equal(np.isinf(n), np.isinf(b))
    return np.array_equal(np.isposinf(n), np.isposinf(b)) and np.array_equal(np.isneginf(n), np.isneginf(b))


def _floating(n: Array, b: Array) -> tuple[Array, Array]:
    """Both in the wider type, at least float32; complex values as pairs of numbers."""
    if n.dtype.kind == "c" or b.dtype.kind == "c":
        return _wide(n.astype(np.complex128)), _wide(b.astype(np.complex128))
    floats = [array.dtype for array in (n, b) if array.dtype.kind == "f"]
    kind = np.result_type(np.float32, *floats)
    return n.astype(kind, copy=False).reshape(-1), b.astype(kind, copy=False).reshape(-1)


def _wide(array: Array) -> Array:
    if array.dtype.kind == "c":
        return array.astype(np.complex128).reshape(-1).view(np.float64)
    return array.astype(np.float64).reshape(-1)


def _relative(n: Array, b: Array) -> Array:
    n, b = _floating(n, b)
    zero = b == 0
    if zero.any():
        tiny = np.finfo(b.dtype).eps
        n, b = np.where(zero, n + tiny, n), np.where(zero, tiny, b)
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(n - b) / np.abs(b))


def _cosine(n: Array, b: Array) -> Cell:
    length_n, length_b = math.sqrt(np.dot(n, n)), math.sqrt(np.dot(b, b))
    if length_n <= _TINY and length_b <= _TINY:
        return 1.0
    if length_n <= _TINY or length_b <= _TINY:
        return "Nan"
    cosine = float(np.dot(n, b) / (length_n * length_b))
    if math.isnan(cosine):
        return "Nan"
    return round(cosine, 6 if cosine > 0.9999 else 12)


def _cell(value: Any) -> Cell:
    number = float(value)
    return "Nan" if math.isnan(number) else round(number, 12)
