"""The size of dumps, to decide if several processes pay."""

from __future__ import annotations

import os
from collections.abc import Iterable

from probe.common.dump.layout import TENSOR_FOLDER, folder_of, has_real_data

# Below these, of all pairs together, processes do not pay: they start in a quarter of a second, and in two with torch,
# which each of them needs for real data.
_SMALL_TEXT = 8_000_000
_SMALL_VALUES = 200_000_000
_FEW_TENSORS = 4_000


def are_large(paths: Iterable[str]) -> bool:
    """True if dumps, given their folders or files in them, are so large that starting processes for them pays."""
    text = tensors = values = 0
    for folder in map(folder_of, paths):
        text += sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
        if has_real_data(folder):
            sizes = [entry.stat().st_size for entry in os.scandir(os.path.join(folder, TENSOR_FOLDER))]
            tensors, values = tensors + len(sizes), values + sum(sizes)
        if text > _SMALL_TEXT or tensors > _FEW_TENSORS or values > _SMALL_VALUES:
            return True
    return False
