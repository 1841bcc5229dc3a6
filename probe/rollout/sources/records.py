"""Tables with a row for each sequence: ``.jsonl`` and ``.parquet``."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from probe.common import files
from probe.common.errors import FileCheckException, MissingDependency, MsprobeException
from probe.rollout.sources.keys import one_of
from probe.rollout.sources.rows import Rows, joined, rows_of


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
            rows.append((_numbers(_under(found, key, path, number), f"{name}: {path}, line {number}"), ""))
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


def _numbers(found: Any, where: str) -> Any:
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
