"""Saved values as msProbe 26.2 writes them: arrays in float32, and statistics alone in the JSON file."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from probe.common import log
from probe.rollout.saving.rules import Stored
from probe.rollout.saving.tree import Array, Tree

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
