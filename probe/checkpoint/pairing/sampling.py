"""The likeness of two tensors, from a few of their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probe.checkpoint.stored.tensors import Array, Tensor
from probe.common.numerics.decoding import decoded

_ROWS = 24
_COLUMNS = 64
"""A guess that served for the models of the tests: 1536 numbers tell any two trained matrices apart."""


SLACK = 2e-6
"""Error of a distance that is the root of a difference of squares: that of 1536 roundings to float64 is 4e-13."""


def _positions(count: int, most: int) -> list[int]:
    """Numbers below `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def sample(tensor: Tensor) -> Array:
    """Numbers from everywhere in a tensor, in float64; of two tensors of one shape they are from the same positions."""
    if not tensor.size:
        return np.empty(0)
    rows = []
    for row in _positions(tensor.row_count, _ROWS if tensor.row_shape else _ROWS * _COLUMNS):
        words = tensor.rows(row, row + 1).reshape(-1)
        rows.append(decoded(words[_positions(words.size, _COLUMNS)], tensor.dtype).reshape(-1).astype(np.float64))
    return np.concatenate(rows)


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
