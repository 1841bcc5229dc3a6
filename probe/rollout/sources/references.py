"""``FILE:key`` and ``DIR:key``: what a source is, and its reader."""

from __future__ import annotations

import os
from collections.abc import Callable

from probe.common.errors import FileCheckException, MsprobeException
from probe.rollout.sources import records, saved, tensors
from probe.rollout.sources.rows import Rows

_READERS: dict[str, Callable[[str, str, str], Rows]] = {
    ".npy": tensors.read_npy,
    ".npz": tensors.read_npz,
    ".pt": tensors.read_pt,
    ".safetensors": tensors.read_safetensors,
    ".jsonl": records.read_jsonl,
    ".parquet": records.read_parquet,
}


def read_rows(reference: str, name: str) -> Rows:
    """The values that ``FILE``, ``FILE:key`` or ``DIR:key`` stands for.

    Args:
        reference: A file, or a folder that SingleSave wrote, with the key of the values where it has several.
        name: The flag or argument, which errors name.

    Raises:
        MsprobeException: there is nothing of this name, or it cannot be read.
    """
    path, key = _split(reference, name)
    if os.path.isdir(path):
        return saved.read_folder(path, key, name)
    reader = _READERS.get(os.path.splitext(path)[1].lower())
    if reader is None:
        raise MsprobeException(
            f"{name}: {path} has no form that is read; allowed: {', '.join(_READERS)}, and DIR:key of SingleSave."
        )
    try:
        return reader(path, key, name)
    except OSError as error:
        raise FileCheckException(f"{name}: {path}: cannot be read: {error.strerror or error}.") from None


def _split(reference: str, name: str) -> tuple[str, str]:
    if os.path.exists(reference):
        return reference, ""
    path, *parts = reference.split(":")
    # Paths and keys may have colons themselves.
    for number in range(len(parts)):
        if path and os.path.exists(path):
            return path, ":".join(parts[number:])
        path = f"{path}:{parts[number]}"
    shown = reference.rpartition(":")[0] or reference
    raise FileCheckException(f"{name}: {shown} does not exist; give FILE, FILE:key or DIR:key.")
