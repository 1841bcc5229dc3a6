"""The direction of each gradient: its sketch, and the cosine of the angle to the gradient of the step before."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from probe.backends.protocol import Measurer
from probe.common.numerics.sketch import LANES, VERSION, Sums
from probe.common.report.trends import COSINE, GRADIENT_DIRECTION, SKETCH, TrendRow, TrendTable

_VERSION = bytes((VERSION,))


class Gradient(NamedTuple):
    """The gradient of one parameter, which has a name in a chunk of the model."""

    name: str
    chunk: int
    placement: str
    value: object


class _Waiting(NamedTuple):
    table: TrendTable
    packed: list[list[bytes]]
    """The sketch of each row, see `probe.backends.protocol.Sketched`."""


class GradientDirections:
    """Makes the rows of gradients by their directions.

    Args:
        measurer: Makes sketches.
        order: Positions of rows.
    """

    def __init__(self, measurer: Measurer, order: Iterator[int]) -> None:
        self._measurer, self._order = measurer, order
        self._waiting: _Waiting | None = None
        self._before: dict[tuple[int, str], Sums] = {}
        """By chunk and name of a parameter, the sums of the last step that was collected."""

    def table(self, gradients: Sequence[Gradient], more: tuple[str, ...]) -> TrendTable:
        """A table without cosines and sketches, which come when `finisher` has run.

        Args:
            gradients: In the order of the rows.
            more: The names of the columns between the dtype and the sketch: that of the placement, if there is one.
        """
        table, packed = TrendTable(GRADIENT_DIRECTION, (COSINE,), more=(*more, SKETCH)), []
        for each in gradients:
            found = self._measurer.sketch(each.value)
            if found is not None:
                placement = (each.placement,) if more else ()
                row = each.name, each.chunk, 0, [math.nan], found.shape, found.dtype, found.elements
                table.rows.append(TrendRow(*row, order=next(self._order), more=placement))
                packed.append(found.packed)
        self._waiting = _Waiting(table, packed)
        return table

    def finisher(self) -> Callable[[], None] | None:
        """A function that fills in the last table when its sketches are on the host; ``None`` if there is none."""
        waiting, self._waiting = self._waiting, None
        return None if waiting is None else lambda: self._finish(waiting)

    def _finish(self, waiting: _Waiting) -> None:
        rows = waiting.table.rows
        sums = np.frombuffer(b"".join(each[0][: 4 * LANES] for each in waiting.packed), "<f4").reshape(-1, LANES)
        keys = [(row.chunk, row.name) for row in rows]
        nothing = np.zeros(LANES, np.float32)
        before = np.array([self._before.get(key, nothing) for key in keys], np.float32).reshape(-1, LANES)
        for index, cosine in enumerate(_cosines(sums, before)):
            text = base64.b64encode(_VERSION + waiting.packed[index][0]).decode()
            rows[index] = rows[index]._replace(values=[cosine], more=(*rows[index].more, text))
        self._before = dict(zip(keys, sums))


def _cosines(one: Sums, other: Sums) -> list[float]:
    """The cosines of rows; NaN where a row is zero."""
    mine, theirs = one.astype(np.float64), other.astype(np.float64)
    norms = np.linalg.norm(mine, axis=1) * np.linalg.norm(theirs, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: list[float] = np.clip(np.sum(mine * theirs, axis=1) / norms, -1.0, 1.0).tolist()
    return found
