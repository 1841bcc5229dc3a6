"""A pair of parameters, or one that has no counterpart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

import numpy as np

from probe.checkpoint.scheme import is_known, layer_of
from probe.checkpoint.stored import Array, Tensor
from probe.common.numerics.rounding import decoded


@dataclass
class Side:
    """A parameter of one checkpoint, or a part of one.

    Args:
        name: as in the checkpoint.
        key: in the scheme of `probe.checkpoint.scheme`.
    """

    name: str
    key: str
    tensor: Tensor
    part: str = ""
    """The part, in words."""


class Reading(NamedTuple):
    """A way to read a stored parameter: its rows in another order, or transposed.

    Args:
        order: the order of the rows, the same text for all parameters that are stored alike; empty if as it is.
    """

    words: str
    tensor: Tensor
    turned: bool = False
    order: str = ""


@dataclass
class Pair:
    """Two parameters that are compared.

    Args:
        readings: ways to read one of them, of which the first is as it is stored; the values say which is right.
        of_first: True if they are readings of the first side.
        group: the parameters whose rows are in one order in a whole checkpoint, such as those that are rotated.
        how: why these two, where their names do not say it.
    """

    one: Optional[Side]  # noqa: UP045 (evaluated, on Python 3.9 too)
    other: Optional[Side]  # noqa: UP045
    readings: Sequence[Reading] = ()
    of_first: bool = False
    group: str = ""
    how: list[str] = field(default_factory=list)
    reading: Optional[Reading] = None  # noqa: UP045
    """The one that was chosen."""
    wrong: str = ""
    """The reason why this reading is a difference, though the values agree in it."""

    @property
    def key(self) -> str:
        """In the scheme of names, from the side of which a layer is known."""
        keys = [side.key for side in (self.one, self.other) if side is not None]
        return next((key for rule in (is_known, layer_of) for key in keys if rule(key)), keys[0])

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Both sides as they are compared."""
        assert self.one is not None and self.other is not None
        one, other = self.one.tensor, self.other.tensor
        if self.reading is None:
            return one, other
        return (self.reading.tensor, other) if self.of_first else (one, self.reading.tensor)


# --- sampling


_ROWS = 24
"""Rows of a sample; see `_COLUMNS`, which stands with it."""
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
