"""Files of tensors: ``.npy``, ``.npz``, ``.pt`` and ``.safetensors``. Nothing in them is executed."""

from __future__ import annotations

import math
import zipfile
from typing import Any

import numpy as np

from probe.common import files
from probe.common.dump.reading.safetensors_header import read_header
from probe.common.dump.reading.tensor_reading import read_entries, read_tensor
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.numerics.decoding import decoded, word_type
from probe.common.numerics.formats import is_complex, is_float
from probe.rollout.sources.keys import one_of
from probe.rollout.sources.rows import Rows, joined, rows_of, short


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
            raise MsprobeException(f'{name}: {path} holds one tensor and has no keys; leave ":{key}" out.')
        return _of_pt(entries, name)
    return _of_pt(entries[one_of(key, list(entries), path)], name)


def _of_pt(found: Any, name: str) -> Rows:
    if isinstance(found, list):
        return joined([(values, short(dtype)) for values, dtype in found], name)
    values, dtype = found
    return joined([(values, short(dtype))], name)


def read_safetensors(path: str, key: str, name: str) -> Rows:
    """One tensor of a file."""
    with files.open_for_reading(path) as stream:

        def read(offset: int, size: int) -> bytes:
            stream.seek(offset)
            return stream.read(size)

        tensors = read_header(path, stream.seek(0, 2), read).tensors
        offset, dtype, shape = tensors[one_of(key, list(tensors), path)]
        words = word_type(dtype)
        if words is None or is_complex(dtype):
            raise MsprobeException(f"{name}: {path}: dtype {dtype} is not read; allowed: dtypes of real numbers.")
        stream.seek(offset)
        values = np.fromfile(stream, words.newbyteorder("<"), math.prod(shape))
    if is_float(dtype):
        values = decoded(values, dtype)
    return joined([(values.reshape(shape), short(dtype))], name)
