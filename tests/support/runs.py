"""Runs of several steps and ranks, made up: what is in them is written by the tests, not recorded."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = "Torch.sin.0.forward"


def tensor(values: NDArray[Any], file: str | None = None) -> dict[str, Any]:
    """The entry of a tensor in dump.json."""
    wide = np.nan_to_num(values.astype(np.float64))
    taken = (wide.max(), wide.min(), wide.mean(), float(np.linalg.norm(wide))) if wide.size else (None,) * 4
    statistics = dict(zip(("Max", "Min", "Mean", "Norm"), taken))
    entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(values.shape), "requires_grad": False}
    return {**entry, **statistics, **({"data_name": file} if file else {})}


def write(folder: Path, tensors: Sequence[NDArray[Any]], real_data: bool = False, stack: bool = False) -> None:
    """The dump of one process: a call that takes `tensors`."""
    folder.mkdir(parents=True)
    names = [f"{RECORD}.input.{n}.npy" if real_data else None for n in range(len(tensors))]
    entries = [tensor(values, name) for values, name in zip(tensors, names)]
    head = {"task": "tensor" if real_data else "statistics", "level": "L1", "framework": "pytorch"}
    data = {RECORD: {"input_args": entries, "input_kwargs": {}, "output": []}}
    (folder / "dump.json").write_text(json.dumps({**head, "data": data}))
    if real_data:
        (folder / "dump_tensor_data").mkdir()
        for values, name in zip(tensors, names):
            np.save(folder / "dump_tensor_data" / str(name), values)


def two_runs(root: Path, places: Sequence[str], real_data: bool = False) -> tuple[Path, Path]:
    """Two runs with a dump at each of `places`; the values are the number of the place, the golden ones half more."""
    for side, more in (("target", 0.0), ("golden", 0.5)):
        for number, place in enumerate(places):
            write(root / side / place, [np.full(4, number + more + 1, np.float32)], real_data)
    return root / "target", root / "golden"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def without_times(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by its path without the time in it."""
    return {
        str(path.relative_to(folder)).rstrip(path.suffix).rpartition("_")[0]: path.read_bytes()
        for path in sorted(folder.rglob("*.*"))
    }
