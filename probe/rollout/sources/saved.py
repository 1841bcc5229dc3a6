"""Values that SingleSave wrote, by step, rank and micro step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.dump.reading.tensor_reading import read_tensor
from probe.common.errors import MsprobeException
from probe.rollout.saving.folders import Position, SavedRun, arrays_in, dtypes_in, folder_name, plain_values_in
from probe.rollout.sources.keys import one_of
from probe.rollout.sources.rows import Rows, joined, short


def read_folder(path: str, key: str, name: str) -> Rows:
    """All values of a key, by step, rank and micro step; an array inside of a list or a mapping is a part of its own.

    Raises:
        MsprobeException: the folder is not one of SingleSave, or lacks the key.
    """
    run = SavedRun(path)
    known = run.keys()
    escaped = folder_name(key) if key else ""
    key = escaped if escaped in known else one_of(key, known, path)
    parts: list[tuple[NDArray[Any], str]] = []
    steps: list[int] = []
    ranks: list[int | str] = []
    for (step, rank, _), folder in run.saves(key).items():
        dtypes = dtypes_in(folder, key)
        dtype = short(dtypes.pop()) if len(dtypes) == 1 else ""
        arrays = [read_tensor(file) for file in arrays_in(folder, key).values()]
        found = arrays or _numbers(plain_values_in(folder, key), f"{name}: {folder}")
        parts += ((array, dtype) for array in found)
        steps += [step] * len(found)
        ranks += [rank] * len(found)
    if not parts:
        raise MsprobeException(f"{name}: {path}:{key} holds no numbers.")
    # Processes without a rank have a name; numbers and names are no type of numpy together.
    return joined(parts, name, steps, ranks if all(isinstance(rank, int) for rank in ranks) else map(str, ranks))


def _numbers(values: dict[Position, Any], where: str) -> list[NDArray[Any]]:
    """The numbers of a list, or of a list of lists with a row for each; a missing one is ``None``."""
    rows: dict[str, list[float]] = {}
    for position, value in values.items():
        if not (value is None or isinstance(value, (int, float))):
            raise MsprobeException(f"{where}: {str(value)[:40]!r} at {position} is not a number.")
        row = str(position).rpartition(".")[0]
        rows.setdefault(row, []).append(np.nan if value is None else value)
    return [np.array(row) for row in rows.values()]
