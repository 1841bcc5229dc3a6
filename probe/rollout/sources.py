"""``FILE:key`` and ``DIR:key``: what a source is, and its reader."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from probe.common import files
from probe.common.dump.reading.safetensors_header import read_header
from probe.common.dump.reading.tensor_reading import read_entries, read_tensor
from probe.common.errors import FileCheckException, MissingDependency, MsprobeException
from probe.common.numerics.formats import is_complex, is_float, is_half, plain_name
from probe.common.numerics.rounding import decoded, word_type
from probe.rollout.saved_folders import Position, SavedRun, arrays_in, dtypes_in, folder_name, plain_values_in

Array = NDArray[Any]
_MOST_DIMENSIONS = 3
"""Sequences, positions, and the alternatives of a position."""


@dataclass(frozen=True)
class Rows:
    """Numbers of several sequences, one after the other."""

    name: str
    """The name in errors: the flag or argument, or the source."""
    values: Array
    lengths: Array
    steps: Array | None = None
    """Step of each row, like the rank, where the source tells it."""
    ranks: Array | None = None
    dtype: str = ""
    """The short dtype of the source, which says that both sides may have been computed in it."""
    deep_shape: tuple[int, ...] = ()
    """The shape of an array of three dimensions, sequences, tokens and candidates; its rows are those of tokens."""


def rows_of(value: Any, name: str) -> Rows:
    """Rows of an array or tensor of one or two dimensions, or of a list of those of one dimension.

    Raises:
        MsprobeException: it has another form.
    """
    if isinstance(value, (list, tuple)) and value and not _is_number(value[0]):
        return joined([_array(each, f"{name}[{number}]") for number, each in enumerate(value)], name)
    array, dtype = _array(value, name)
    if array.ndim == 2:
        return Rows(name, array.reshape(-1), np.full(len(array), array.shape[1]), dtype=dtype)
    return joined([(array, dtype)], name)


def joined(
    parts: Sequence[tuple[Array, str]], name: str, steps: Iterable[int] = (), ranks: Iterable[int | str] = ()
) -> Rows:  # fmt: skip
    """Arrays of one dimension, a row each, or of two, with the dtypes of their sources.

    Args:
        parts: The arrays, each with the dtype of its source.
        name: As an error names them.
        steps: Of each part, as are the ranks; empty where they are not known.
    """
    lengths, flat, deep_shape = [], [], ()
    for array, _ in parts:
        if array.ndim > _MOST_DIMENSIONS:
            raise MsprobeException(f"{name}: its shape is {array.shape}; allowed: sequences, tokens and candidates.")
        if array.ndim == _MOST_DIMENSIONS:
            deep_shape, array = array.shape, array.reshape(-1, array.shape[-1])
        flat.append(array.reshape(-1))
        lengths.append(np.full(len(array), array.shape[1]) if array.ndim == 2 else np.array([array.size]))
    dtypes = {dtype for _, dtype in parts}
    counts = [len(each) for each in lengths]

    def of_rows(numbers: Iterable[int | str]) -> Array | None:
        listed = list(numbers)
        return np.repeat(np.array(listed), counts) if listed else None

    values = flat[0] if len(flat) == 1 else np.concatenate(flat) if flat else np.zeros(0, np.float32)
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    whole = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    return Rows(name, values, whole, of_rows(steps), of_rows(ranks), dtype, deep_shape)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, str, bool)) or value is None


def _array(value: Any, name: str) -> tuple[Array, str]:
    """An array of what programs have, and its dtype if it is a short one.

    Tensors of any framework say by themselves how they become arrays; those on a device are fetched.
    """
    if isinstance(value, np.ndarray):
        array, dtype = value, _name(value.dtype)
    else:
        dtype = plain_name(str(getattr(value, "dtype", "")))
        for method in ("detach", "cpu"):
            value = getattr(value, method)() if hasattr(value, method) else value
        try:
            array = _numbers(value)
        except (TypeError, RuntimeError, ValueError) as error:
            if not hasattr(value, "float"):
                raise MsprobeException(f"{name}: it is not an array of numbers: {error}.") from None
            # numpy has no bfloat16.
            array = _numbers(value.float())
    if array.ndim == 0:
        array = array.reshape(1)
    return array, short(dtype)


@cache
def _name(dtype: np.dtype[Any]) -> str:
    # numpy makes this text anew each time, which takes longer than to read the array.
    return str(dtype)


def _numbers(value: Any) -> Array:
    found = value.numpy() if hasattr(value, "numpy") else value
    # A missing number is none that is finite.
    if isinstance(found, (list, tuple)) and any(each is None for each in found):
        found = [np.nan if each is None else each for each in found]
    return np.asarray(found)


def short(dtype: str) -> str:
    """The dtype if it is a short one: what is stored in float32 may have been computed in any."""
    return dtype if dtype and is_half(dtype) else ""


# --- keys


def one_of(key: str, known: Sequence[str], where: str) -> str:
    """The key itself, or the only one there is.

    Raises:
        MsprobeException: the source lacks it, or has several and none is given.
    """
    if key in known:
        return key
    if not key and len(known) == 1:
        return known[0]
    has = ", ".join(known) or "none"
    if key:
        raise MsprobeException(f'{where} has no key "{key}"; it has: {has}.')
    raise MsprobeException(f"{where} has several keys; write {where}:KEY with one of: {has}.")


# --- records


def read_jsonl(path: str, key: str, name: str) -> Rows:
    """The list (or number) under a key of each line; ``a.b`` is the key ``b`` of the object ``a``."""
    decoder, rows = msgspec.json.Decoder(), []
    with files.open_for_reading(path) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                found = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise FileCheckException(f"{name}: {path}, line {number}: no JSON: {error}.") from None
            rows.append((_numbers_of_record(_under(found, key, path, number), f"{name}: {path}, line {number}"), ""))
    return joined(rows, name)


def _under(found: Any, key: str, path: str, number: int) -> Any:
    if not isinstance(found, dict):
        raise FileCheckException(f"{path}, line {number}: a {type(found).__name__}; allowed: an object with keys.")
    if key in found or not key:
        return found[one_of(key, list(found), path)]
    first, dot, rest = key.partition(".")
    if dot and isinstance(found.get(first), dict):
        return _under(found[first], rest, path, number)
    return found[one_of(key, list(found), f"{path}, line {number},")]


def _numbers_of_record(found: Any, where: str) -> Any:
    try:
        if isinstance(found, list):
            # A missing number is null.
            return np.array([np.nan if each is None else each for each in found], None if found else np.float64)
        return np.array([found])
    except (TypeError, ValueError):
        raise MsprobeException(f"{where}: its value is not a list of numbers.") from None


def read_parquet(path: str, key: str, name: str) -> Rows:
    """A column of numbers or of lists of numbers."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingDependency(f"{name}: pyarrow is needed for .parquet files: pip install pyarrow.") from None
    with files.open_for_reading(path) as stream:
        try:
            table = parquet.ParquetFile(stream)
            column = table.read([one_of(key, table.schema_arrow.names, path)]).column(0).combine_chunks()
        except pyarrow.ArrowException as error:
            raise FileCheckException(f"{name}: {path}: no table of Parquet: {str(error).splitlines()[0]}.") from None
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    if not (pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type)):
        return rows_of(column.to_numpy(zero_copy_only=False), name)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return Rows(name, column.flatten().to_numpy(zero_copy_only=False), np.nan_to_num(lengths).astype(np.int64))


# --- saved


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
        found = arrays or _saved_numbers(plain_values_in(folder, key), f"{name}: {folder}")
        parts += ((array, dtype) for array in found)
        steps += [step] * len(found)
        ranks += [rank] * len(found)
    if not parts:
        raise MsprobeException(f"{name}: {path}:{key} holds no numbers.")
    # Processes without a rank have a name; numbers and names are no type of numpy together.
    return joined(parts, name, steps, ranks if all(isinstance(rank, int) for rank in ranks) else map(str, ranks))


def _saved_numbers(values: dict[Position, Any], where: str) -> list[NDArray[Any]]:
    """The numbers of a list, or of a list of lists with a row for each; a missing one is ``None``."""
    rows: dict[str, list[float]] = {}
    for position, value in values.items():
        if not (value is None or isinstance(value, (int, float))):
            raise MsprobeException(f"{where}: {str(value)[:40]!r} at {position} is not a number.")
        row = str(position).rpartition(".")[0]
        rows.setdefault(row, []).append(np.nan if value is None else value)
    return [np.array(row) for row in rows.values()]


# --- tensors


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
        return _rows_of_pt(entries, name)
    return _rows_of_pt(entries[one_of(key, list(entries), path)], name)


def _rows_of_pt(found: Any, name: str) -> Rows:
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


# --- references


_READERS: dict[str, Callable[[str, str, str], Rows]] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".pt": read_pt,
    ".safetensors": read_safetensors,
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
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
        return read_folder(path, key, name)
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
