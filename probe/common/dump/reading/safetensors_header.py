"""Header of a safetensors file: eight bytes with its length, JSON, and then the tensors.

The header is read here and not by the package of this name, which refuses a bad file without saying what is wrong, and
gives values of a framework.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from probe.common.errors import DumpFormatError
from probe.common.numerics.formats import format_of

_LARGEST_HEADER = 100 << 20
"""Bytes; the limit of the format."""
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu", "C64": "complex64", "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}, **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_PACKED = {"F4": 2}
"""Formats of several numbers in a byte, compared as bytes."""


class StoredTensor(NamedTuple):
    """A tensor of a file."""

    offset: int
    """The byte of the file at which its elements begin; they follow each other, the least significant byte first."""
    dtype: str
    """The plain name of the dtype."""
    shape: tuple[int, ...]


class Header(NamedTuple):
    """The tensors of a file by their names, and the texts that its writer added."""

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]


def read_header(path: str, size: int, read: Callable[[int, int], bytes]) -> Header:
    """The header of a file, with every tensor inside of the file and none on the bytes of another.

    Args:
        path: The file, which errors name.
        size: Its bytes.
        read: Gives the bytes from an offset on, by the offset and their number.

    Raises:
        DumpFormatError: it is damaged, and how.
    """
    if size < 8:
        raise DumpFormatError(f"{path}: not a safetensors file: it has {size} bytes; copy the file again.")
    length = int.from_bytes(read(0, 8), "little")
    if length > min(_LARGEST_HEADER, size - 8):
        raise DumpFormatError(
            f"{path}: its header claims {length} bytes, but the file has {size}; it is cut off or no "
            "safetensors file: copy the file again."
        )
    content = _content(path, read(8, length))
    metadata = content.pop("__metadata__", None)
    texts = metadata if isinstance(metadata, dict) else {}
    start, used, tensors = 8 + length, [], {}
    for name, entry in content.items():
        begin, end, dtype, shape = _entry(path, name, entry)
        if not 0 <= begin <= end <= size - start:
            raise DumpFormatError(
                f"{path}: {name} ends at byte {end} of the data, and the file has {size - start}; it is cut off or its "
                "header is wrong: copy the file again."
            )
        used.append((begin, end, name))
        tensors[name] = StoredTensor(start + begin, dtype, shape)
    used.sort()
    for (_, end, name), (begin, _, other) in zip(used, used[1:]):
        if begin < end:
            raise DumpFormatError(f"{path}: {name} and {other} share bytes, which its format forbids: save it again.")
    return Header(tensors, {key: value for key, value in texts.items() if isinstance(value, str)})


def _content(path: str, data: bytes) -> dict[str, Any]:
    twice: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in found:
            if key in result:
                twice.append(key)
            result[key] = value
        return result

    try:
        header = json.loads(data.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise DumpFormatError(f"{path}: its header is no JSON ({error}); copy the file again.") from None
    if twice:
        raise DumpFormatError(f"{path}: {twice[0]} is in its header twice, and only one can be meant: save it again.")
    if not isinstance(header, dict):
        raise DumpFormatError(f"{path}: its header is a {type(header).__name__}, not an object: copy the file again.")
    return header


def _entry(path: str, name: str, entry: Any) -> tuple[int, int, str, tuple[int, ...]]:
    try:
        begin, end = entry["data_offsets"]
        written, shape = entry["dtype"], tuple(entry["shape"])
    except (KeyError, TypeError, ValueError):
        raise DumpFormatError(
            f"{path}: {name}: its header lacks dtype, shape or data_offsets: save it again."
        ) from None
    if not all(type(each) is int and each >= 0 for each in (*shape, begin, end)):
        raise DumpFormatError(
            f"{path}: {name}: shape and data_offsets must be numbers of 0 or more; save the file again."
        )
    if written in _PACKED:
        shape = (*shape[:-1], shape[-1] // _PACKED[written]) if shape else shape
        written = "U8"
    if written not in DTYPES:
        raise DumpFormatError(
            f"{path}: {name}: the dtype {str(written)[:40]!r} is not known; allowed: {', '.join(DTYPES)}."
        )
    dtype = DTYPES[written]
    number_format = format_of(dtype)
    assert number_format is not None, dtype
    needed = math.prod(shape) * number_format.bits // 8
    if needed != end - begin:
        raise DumpFormatError(
            f"{path}: {name}: shape {list(shape)} of {dtype} takes {needed} bytes, and its header has {end - begin}; "
            "the header is wrong: save it again."
        )
    return begin, end, dtype, shape
