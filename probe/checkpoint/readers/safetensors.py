"""Safetensors files: eight bytes with the length of a header in JSON, the header, the tensors.

The header is read here and not by the package of this name, which refuses a bad file without saying what is wrong, and
gives values of a framework.
"""

from __future__ import annotations

import json
import math
from typing import Any

from probe.checkpoint.content import Checkpoint
from probe.checkpoint.stored.files import File
from probe.checkpoint.stored.tensors import Stored
from probe.common.errors import DumpFormatError
from probe.common.numerics.decoding import word_type

_LARGEST_HEADER = 100 << 20
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu", "C64": "complex64", "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}, **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_PACKED = {"F4": 2}
"""Formats of several numbers in a byte, compared as bytes."""


def read_safetensors(path: str, into: Checkpoint) -> None:
    """Add the tensors of a file.

    Raises:
        FileCheckException, DumpFormatError: it cannot be read, or its header is wrong, and how.
    """
    file = File(path)
    if file.size < 8:
        raise DumpFormatError(f"{path}: not a safetensors file: it has {file.size} bytes; copy the file again.")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > min(_LARGEST_HEADER, file.size - 8):
        raise DumpFormatError(
            f"{path}: its header has {length} bytes by its own account, and the file {file.size}; it is cut off or no "
            "safetensors file: copy the file again."
        )
    header = _header(path, file.read(8, length))
    metadata = header.pop("__metadata__", None)
    if isinstance(metadata, dict):
        into.settings.update((f"metadata.{key}", value) for key, value in metadata.items() if isinstance(value, str))
    used = []
    for name, entry in header.items():
        if name in into.weights:
            raise DumpFormatError(
                f"{path}: {name} is in another file of the checkpoint, too; remove the file that does not belong to it."
            )
        begin, end, dtype, shape = _entry(path, name, entry)
        if not 0 <= begin <= end <= file.size - 8 - length:
            raise DumpFormatError(
                f"{path}: {name} ends at byte {end} of the data, and the file has {file.size - 8 - length}; it is cut "
                "off or its header is wrong: copy the file again."
            )
        used.append((begin, end, name))
        into.weights[name] = Stored(file, 8 + length + begin, dtype, shape)
    used.sort()
    for (_, end, name), (begin, _, other) in zip(used, used[1:]):
        if begin < end:
            raise DumpFormatError(f"{path}: {name} and {other} share bytes, which its format forbids: save it again.")


def _header(path: str, data: bytes) -> dict[str, Any]:
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
        raise DumpFormatError(f"{path}: {name}: shape and data_offsets have to be numbers from 0 on: save it again.")
    if written in _PACKED:
        shape = (*shape[:-1], shape[-1] // _PACKED[written]) if shape else shape
        written = "U8"
    if written not in DTYPES:
        raise DumpFormatError(
            f"{path}: {name}: the dtype {str(written)[:40]!r} is not known; allowed: {', '.join(DTYPES)}."
        )
    dtype = DTYPES[written]
    words = word_type(dtype)
    needed = math.prod(shape) * (0 if words is None else words.itemsize)
    if needed != end - begin:
        raise DumpFormatError(
            f"{path}: {name}: shape {list(shape)} of {dtype} takes {needed} bytes, and its header has {end - begin}; "
            "the header is wrong: save it again."
        )
    return begin, end, dtype, shape
