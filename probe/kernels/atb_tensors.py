"""Tensors that ATB writes: ``key=value`` lines of text up to ``$End=1``, and then the elements.

    $Version=1.0
    $Object.Count=1
    $Object.Length=24
    dtype=0
    format=2
    dims=2,3
    $Object.data=0,24
    $End=1

`dims` has the shape, `dtype` the number of the element's type in Ascend's enumeration. The last lines say where the
elements begin behind the header and how many bytes they are.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common import files
from probe.common.errors import DumpFormatError
from probe.common.numerics.decoding import decoded, word_type

_DTYPES = {
    0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 6: "int16", 7: "uint16", 8: "uint32", 9: "int64",
    10: "uint64", 11: "float64", 12: "bool", 16: "complex64", 17: "complex128", 27: "bfloat16",
}  # fmt: skip
"""Ascend's documented numbers of data types (``aclDataType``)."""
_END = b"$End=1"
_LONGEST_HEADER = 1 << 14
"""Bytes. A guess: a header has some ten lines, which are less than a tenth of it."""
_DATA_KEYS = ("$Object.data", "data")


@dataclass(frozen=True)
class AtbTensor:
    """A tensor with its plain dtype; values of bfloat16 are held in float32, which has all of them."""

    dtype: str
    values: NDArray[Any]


def is_atb(head: bytes) -> bool:
    """True if a file that begins like this has such a header."""
    return (head.startswith(b"$") and _END in head) or head.startswith((b"$Version=", b"$Object"))


def read_head(path: str) -> bytes:
    """The bytes among which the header of a file ends.

    Raises:
        OSError: the file cannot be read.
    """
    with files.open_for_reading(path) as stream:
        return stream.read(_LONGEST_HEADER)


def read(path: str) -> AtbTensor:
    """The tensor of one file.

    Raises:
        OSError: it cannot be read.
        DumpFormatError: it is damaged, or another kind of file.
    """
    with files.open_for_reading(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        keys, start = _header(path, stream.read(_LONGEST_HEADER))
        dtype, shape = _dtype(path, keys), _shape(path, keys)
        words = word_type(dtype)
        assert words is not None
        # As Python's integers, which a shape that lies does not make small.
        wanted = math.prod(shape) * words.itemsize
        offset, length = _extent(path, keys, wanted)
        if length != wanted:
            raise DumpFormatError(
                f"{path}: the header says that the data has {length} bytes; {dtype} of shape {list(shape)} "
                f"has {wanted}."
            )
        if start + offset + length > size:
            raise DumpFormatError(
                f"{path}: the file is cut off: it has {max(size - start - offset, 0)} bytes of data, and the "
                f"header says {length}."
            )
        stream.seek(start + offset)
        bits = np.frombuffer(stream.read(length), words).reshape(shape)
    return AtbTensor(dtype, decoded(bits, dtype) if dtype == "bfloat16" else bits)


def _header(path: str, head: bytes) -> tuple[dict[str, str], int]:
    """The keys of the header, and the length of it in bytes."""
    end = head.find(_END + b"\n")
    if end < 0 or (end and head[end - 1 : end] != b"\n"):
        raise DumpFormatError(
            f"{path}: it has no line $End=1 in its first {_LONGEST_HEADER} bytes; it is no tensor of ATB."
        )
    keys: dict[str, str] = {}
    for line in head[:end].decode("utf-8", "replace").splitlines():
        key, equals, value = line.partition("=")
        if not equals:
            raise DumpFormatError(f'{path}: the line "{line[:80]}" of the header is not key=value.')
        if key in keys:
            raise DumpFormatError(f'{path}: the header has "{key[:80]}" twice.')
        keys[key] = value.strip()
    return keys, end + len(_END) + 1


def _dtype(path: str, keys: dict[str, str]) -> str:
    text = keys.get("dtype", "")
    dtype = _DTYPES.get(int(text)) if text.isascii() and text.isdigit() and len(text) < 4 else None
    if dtype is None:
        known = ", ".join(f"{number} ({name})" for number, name in _DTYPES.items())
        raise DumpFormatError(f'{path}: dtype is "{text[:80]}"; known: {known}.')
    return dtype


def _shape(path: str, keys: dict[str, str]) -> tuple[int, ...]:
    return tuple(_numbers(path, "dims", keys.get("dims", ""))) if keys.get("dims") else ()


def _extent(path: str, keys: dict[str, str], wanted: int) -> tuple[int, int]:
    """Offset of the data behind the header, and its length, both in bytes."""
    for key in _DATA_KEYS:
        if key in keys:
            numbers = _numbers(path, key, keys[key])
            if len(numbers) != 2:
                raise DumpFormatError(f'{path}: {key} is "{keys[key][:80]}"; expected: offset,length.')
            return numbers[0], numbers[1]
    if "$Object.Length" in keys:
        return 0, _numbers(path, "$Object.Length", keys["$Object.Length"])[0]
    return 0, wanted


def _numbers(path: str, key: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.rstrip(",").split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise DumpFormatError(f'{path}: {key} is "{text[:80]}"; expected: numbers with commas between.')
    return list(map(int, parts))
