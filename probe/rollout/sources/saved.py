"""Folders that SingleSave wrote: ``data/<key>/step<S>/rank<R>/micro_step<M>/<key>.npy``, and ``.json`` beside it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

from probe.common import files
from probe.common.dump.reading.tensor_reading import read_tensor
from probe.common.errors import MsprobeException
from probe.rollout.sources.keys import one_of
from probe.rollout.sources.rows import Rows, joined, short

_DATA = "data"
_LARGEST_JSON = 1 << 20


def read_folder(path: str, key: str, name: str) -> Rows:
    """All values of a key, by step, rank and micro step; a list that was saved has a file for each of its elements.

    Raises:
        MsprobeException: the folder is not one of SingleSave, or lacks the key.
    """
    data = os.path.join(path, _DATA)
    known = sorted(entry for entry in _entries(data))
    if not known:
        raise MsprobeException(f"{name}: {path} has no folder {_DATA} with saved keys, as SingleSave writes it.")
    key = one_of(key, known, path)
    parts, steps, ranks = [], [], []
    for step, of_step in _numbered(os.path.join(data, key), "step"):
        for rank, of_rank in _numbered(of_step, "rank"):
            for _, folder in _numbered(of_rank, "micro_step"):
                dtype = _dtype(os.path.join(folder, f"{key}.json"))
                for file in _arrays(folder, key):
                    parts.append((read_tensor(file), dtype))
                    steps.append(step)
                    ranks.append(rank)
    if not parts:
        raise MsprobeException(f"{name}: {path}:{key} holds no arrays.")
    return joined(parts, name, steps, ranks)


def _entries(path: str) -> list[str]:
    return os.listdir(path) if os.path.isdir(path) else []


def _numbered(path: str, kind: str) -> Iterator[tuple[int, str]]:
    """The folders ``<kind><number>``, by their numbers; a process without a rank has none in its name."""
    found = []
    for entry in _entries(path):
        match = re.fullmatch(rf"{kind}(\d*)", entry)
        if match:
            found.append((int(match[1] or 0), os.path.join(path, entry)))
    return iter(sorted(found))


def _arrays(folder: str, key: str) -> list[str]:
    """The file of a value, or those of the elements of a list in their order."""
    whole = os.path.join(folder, f"{key}.npy")
    if os.path.exists(whole):
        return [whole]
    numbers = (re.fullmatch(rf"{re.escape(key)}\.(\d+)\.npy", entry) for entry in _entries(folder))
    return [os.path.join(folder, match[0]) for match in sorted(filter(None, numbers), key=lambda match: int(match[1]))]


def _dtype(path: str) -> str:
    """The dtype that the value had, if it was a short one."""
    try:
        with files.open_for_reading(path) as stream:
            found: Any = json.loads(stream.read(_LARGEST_JSON))
        found = found["data"]
        found = found[0] if isinstance(found, list) else found
        return short(str(found["dtype"]).rpartition(".")[2])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        # Those of msProbe do not say it.
        return ""
