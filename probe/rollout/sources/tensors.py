"""Files of tensors: ``.npy``, ``.npz``, ``.pt`` and ``.safetensors``. Nothing in them is executed."""

from __future__ import annotations

import json
import math
import zipfile
from typing import Any

import numpy as np

from probe.common import files
from probe.common.dump.reading.tensor_reading import read_entries, read_tensor
from probe.common.errors import FileCheckException, MsprobeException
from probe.rollout.sources.keys import one_of
from probe.rollout.sources.rows import Rows, joined, rows_of, short

_LONGEST_HEADER = 100_000_000
"""Of a file of safetensors, in bytes; what its own reader allows."""
_TYPES: dict[str, tuple[str, str]] = {
    "F64": ("<f8", ""), "F32": ("<f4", ""), "F16": ("<f2", "float16"), "BF16": ("<u2", "bfloat16"), "I64": ("<i8", ""),
    "I32": ("<i4", ""), "I16": ("<i2", ""), "I8": ("i1", ""), "U8": ("u1", ""), "BOOL": ("?", ""),
}  # fmt: skip


def read_npy(path: str, key: str, name: str) -> Rows:
    if key:
        raise MsprobeException(f'{name}: {path} holds one array and no key "{key}".')
    return rows_of(read_tensor(path, mapped=True), name)


def read_npz(path: str, key: str, name: str) -> Rows:
    try:
        with files.open_for_reading(path) as stream, np.load(stream, allow_pickle=False) as archive:
            return rows_of(archive[one_of(key, archive.files, path)], name)
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FileCheckException(f"{name}: {path}: no arrays: {error}.") from None


def read_pt(path: str, key: str, name: str) -> Rows:
    entries = read_entries(path)
    if not isinstance(entries, dict):
        if key:
            raise MsprobeException(f'{name}: {path} holds one tensor and no key "{key}".')
        return _of_pt(entries, name)
    return _of_pt(entries[one_of(key, list(entries), path)], name)


def _of_pt(found: Any, name: str) -> Rows:
    if isinstance(found, list):
        return joined([(values, short(dtype)) for values, dtype in found], name)
    values, dtype = found
    return joined([(values, short(dtype))], name)


def read_safetensors(path: str, key: str, name: str) -> Rows:
    """One tensor of a file, whose header is JSON: dtype, shape, and where the elements lie."""
    with files.open_for_reading(path) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise FileCheckException(f"{name}: {path}: its header has {length} bytes, and the file {size}.")
        try:
            header = json.loads(stream.read(length))
            entries = {each: entry for each, entry in header.items() if each != "__metadata__"}
            entry = entries[one_of(key, list(entries), path)]
            shape, (begin, end) = tuple(map(int, entry["shape"])), map(int, entry["data_offsets"])
            stored = str(entry["dtype"])
        except MsprobeException:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FileCheckException(f"{name}: {path}: its header is not one of safetensors.") from None
        if stored not in _TYPES:
            raise MsprobeException(f"{name}: {path}: dtype {stored} is not read; allowed: {', '.join(_TYPES)}.")
        code, dtype = _TYPES[stored]
        count = math.prod(shape)
        if count * np.dtype(code).itemsize != end - begin or not 0 <= begin <= end <= size - 8 - length:
            raise FileCheckException(f"{name}: {path}: its header has {end - begin} bytes for the shape {shape}.")
        stream.seek(8 + length + begin)
        values: Any = np.fromfile(stream, code, count)
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return joined([(values.reshape(shape), dtype)], name)
