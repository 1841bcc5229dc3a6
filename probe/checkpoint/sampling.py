"""A few numbers of a tensor, by which others like it are found before they are read as a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probe.checkpoint.stored import Array, Shape, Tensor, Transposed
from probe.common.numerics.formats import format_of
from probe.common.numerics.rounding import decoded

SMALL = (10, 10)
"""Rows and columns of a sample that a fingerprint holds. As many of both, so that the sample of a transposed matrix is
the transposed one. 100 numbers give the answers of 1536 to all of `benchmarks/checkpoint_answers.py`."""
LARGE = (24, 64)
"""Rows and columns of a sample that tells orders of rows apart. With ten rows, heads of 8 may look like heads of 16."""
SLACK = 2e-6
"""Error of a distance that is the root of a difference of squares: that of 1536 roundings to float64 is 4e-13."""


def _positions(count: int, most: int) -> list[int]:
    """Numbers below `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def positions_of_sample(shape: Shape) -> tuple[list[int], list[int]]:
    """The rows of a sample, and in each of them the columns of the flattened row."""
    return _places(shape, SMALL)


def _places(shape: Shape, most: tuple[int, int]) -> tuple[list[int], list[int]]:
    rows, width = (shape[0] if shape else 1), math.prod(shape[1:])
    return _positions(rows, most[0] if shape[1:] else math.prod(most)), _positions(width, most[1])


def sample(tensor: Tensor, most: tuple[int, int] = SMALL) -> Array:
    """Numbers from everywhere in a tensor, in float64; of two tensors of one shape they are from the same positions."""
    if not tensor.size:
        return np.empty(0)
    if tensor.entry is not None and most == SMALL:
        held: Array = tensor.entry.sample.astype(np.float64)
        return held
    if isinstance(tensor, Transposed) and len(tensor.shape) == 2 and tensor.of.entry is not None and most == SMALL:
        columns = len(positions_of_sample(tensor.of.shape)[1])
        turned: Array = sample(tensor.of).reshape(-1, columns, *_parts(tensor)).swapaxes(0, 1).reshape(-1)
        return turned
    rows, columns_of_each = _places(tensor.shape, most)
    found = []
    for row in rows:
        words = tensor.rows(row, row + 1).reshape(-1)
        found.append(decoded(words[columns_of_each], tensor.dtype).reshape(-1).astype(np.float64))
    return np.concatenate(found)


def size_of_sample(shape: Shape, dtype: str) -> int:
    """The number of elements that `sample` takes of a tensor."""
    if not math.prod(shape):
        return 0
    rows, columns = positions_of_sample(shape)
    found = format_of(dtype)
    return (2 if found is not None and found.is_complex else 1) * len(rows) * len(columns)


def _parts(tensor: Tensor) -> tuple[int, ...]:
    """The numbers of an element of a sample: two of a complex one."""
    found = format_of(tensor.dtype)
    return (2,) if found is not None and found.is_complex else ()


def apart(one: Array, other: Array) -> float:
    """The distance of two vectors, relative to the longer one."""
    if one.shape != other.shape:
        return math.inf
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        return math.inf
    one, other = one[finite], other[finite]
    longer = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(one - other)) / longer if longer else 0.0


class Samples:
    """Samples of one length, whose distances to another one are found in one product of matrices."""

    def __init__(self, samples: Sequence[Array]) -> None:
        self.rows = np.stack(samples)
        self._squares = np.einsum("ij,ij->i", self.rows, self.rows)

    def about(self, own: Array) -> Array:
        """The distances as `apart` has them, within `SLACK`; NaN where a number is not finite."""
        with np.errstate(all="ignore"):
            square = float(own @ own)
            longer = np.maximum(self._squares, square)
            between = np.maximum(self._squares + square - 2 * (self.rows @ own), 0)
            found: Array = np.sqrt(np.where(longer == 0, 0, between / np.where(longer == 0, 1, longer)))
        return found


def best(one: Tensor, readings: Sequence[tuple[str, Tensor]]) -> tuple[str, Tensor, float] | None:
    """The reading that is most like `one`, with its words and its distance."""
    of_one = sample(one)
    found: tuple[str, Tensor, float] | None = None
    for words, reading in readings:
        if reading.shape != one.shape:
            continue
        far = apart(of_one, sample(reading))
        # A transposed one holds all of its elements.
        reading.release()
        if found is None or far < found[2]:
            found = words, reading, far
        if far == 0:
            break
    return found
