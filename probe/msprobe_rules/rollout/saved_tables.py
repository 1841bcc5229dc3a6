"""The rows of msProbe 26.2's tables of saved values, its defects included.

Of a mapping the first array alone is compared; other shapes are compared over their common beginning; NaN and
infinities that both sides have count as different; and what one side lacks has no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout.saving.folders import Position
from probe.rollout.table_rows import Cell, Row, shape_text

Array = NDArray[Any]


class V26Tables:
    """The rows of 26.2.0."""

    name = "msprobe"
    has_notes = False

    def positions(self, first: Mapping[Position, Any], second: Mapping[Position, Any]) -> Mapping[Position, Position]:
        """The indices that both sides have; of a mapping its first name, under the id 0."""
        both = [position for position in first if position in second]
        indices: dict[Position, Position] = {position: position for position in both if isinstance(position, int)}
        return indices or dict(zip((0,), both))

    def row(self, first: Array | None, second: Array | None) -> Row:
        """Measure in float32 what both have."""
        assert first is not None and second is not None
        shapes = shape_text(first), shape_text(second)
        common = tuple(slice(0, min(lengths)) for lengths in zip(first.shape, second.shape))
        a = first[common].astype(np.float32).reshape(-1)
        b = second[common].astype(np.float32).reshape(-1)
        if a.size != b.size or not a.size:
            return Row((*shapes, *[None] * 6), differs=True)
        measured = _measure(a, b)
        return Row((*shapes, *measured), differs=measured[1] is not None)


def _measure(first: Array, second: Array) -> tuple[Cell, ...]:
    same = first == second
    with np.errstate(all="ignore"):
        error = np.abs(first - second)
        relative = np.where(error == 0, np.float32(0), error / np.maximum(np.abs(first), np.abs(second)))
    largest = float(error.max())
    known = relative[~np.isnan(relative)]
    return (
        float(100 * np.count_nonzero(same) / same.size),
        None if same.all() else int(np.argmin(same)),
        largest if np.isfinite(largest) else None,
        float(known.max()) if known.size and np.isfinite(known.max()) else None,
        *(float(100 * np.count_nonzero(relative <= limit) / same.size) for limit in (0.001, 0.01)),
    )


V26_TABLES = V26Tables()
