"""Saved values and the rows of their tables as msProbe 26.2 writes them, its defects included.

Of a mapping the first array alone is compared; other shapes are compared over their common beginning; NaN and
infinities that both sides have count as different; and what one side lacks has no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from probe.common import log
from probe.rollout.saved_folders import Array, Position, Stored, Tree
from probe.rollout.tables import Cell, Row, shape_text

NumpyArray = NDArray[Any]


class V26Tables:
    """The rows of 26.2.0."""

    name = "msprobe"
    has_notes = False

    def positions(self, first: Mapping[Position, Any], second: Mapping[Position, Any]) -> Mapping[Position, Position]:
        """The indices that both sides have; of a mapping its first name, under the id 0."""
        both = [position for position in first if position in second]
        indices: dict[Position, Position] = {position: position for position in both if isinstance(position, int)}
        return indices or dict(zip((0,), both))

    def row(self, first: NumpyArray | None, second: NumpyArray | None) -> Row:
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


def _measure(first: NumpyArray, second: NumpyArray) -> tuple[Cell, ...]:
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


# --- saved files


Statistics = Callable[[NDArray[Any], str], tuple[Any, Any, Any, Any]]
"""Max, min, mean and norm of values of a dtype, as the framework computes them."""


class V26Saving:
    """The form of 26.2.0.

    Numbers, texts and arrays of numpy are left out with a warning. A nested value ends the training there; here it is
    saved in our names.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def kept(self, key: str, tree: Tree) -> Tree | None:
        """The tensors of a value."""
        kept = _tensors(tree)
        if kept is None:
            log.warning(f"SingleSave: {key} holds no tensor and is not saved, as msProbe's rules have it.", once=key)
        return kept

    def stored(self, array: Array) -> Stored:
        """The values in float32."""
        is_floating = array.values.dtype.kind == "f"
        values = array.values.astype(np.float32)
        found = self._statistics(values, array.dtype if is_floating else "float32")
        entry = {**dict(zip(("max", "min", "mean", "norm"), found)), "shape": list(values.shape)}
        return Stored(values, lambda file: entry)


def _tensors(tree: Tree) -> Tree | None:
    if isinstance(tree, Array):
        return tree if tree.is_tensor else None
    if isinstance(tree, dict):
        return {key: kept for key, part in tree.items() if (kept := _tensors(part)) is not None} or None
    if isinstance(tree, list):
        return [kept for part in tree if (kept := _tensors(part)) is not None] or None
    return None
