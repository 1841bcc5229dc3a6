"""``msprobe parse``: tensors of ATB as files that numpy or torch read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common import files
from probe.common.errors import DumpFormatError, FileCheckException, MsprobeException
from probe.common.numerics.rounding import decoded, word_type

SUFFIX = ".bin"
_MOST_LOOKED_AT = 100
"""Files of a folder without tensors of ATB whose kind is looked up. A guess: a dump of kernels has nothing else."""
_ASCEND_DUMP = (
    "it is a kernel dump in Ascend's protobuf format, which is not supported; convert it with msaccucmp.py of the CANN "
    "toolkit (msaccucmp.py convert -d FILE -out DIR -t npy)."
)
_NUMPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"


@dataclass(frozen=True)
class ParsedFile:
    """One file, and what was made of it."""

    source: str
    target: str
    """The file that was written; empty if there is a problem."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    problem: str = ""


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


# --- the folder

Writer = Callable[[str, AtbTensor], None]
"""Writes a tensor to a path."""


def write_npy(path: str, tensor: AtbTensor) -> None:
    """Write a ``.npy`` file; bfloat16 is in it as float32, which has all its values."""
    with files.replacing(path) as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(tensor.values), allow_pickle=False)


def parse(path: str, output: str, suffix: str, write: Writer) -> Iterator[ParsedFile]:
    """Convert a file, or every file ``*.bin`` below a folder, whose folders are made again below `output`.

    Args:
        path: A file or a folder.
        output: The folder that gets the files.
        suffix: The end of the names of files, ``.npy`` or ``.pt``.
        write: Writes one.

    Raises:
        MsprobeException: there is nothing to convert.
    """
    if not os.path.lexists(path):
        raise FileCheckException(f"{path} does not exist; give a file of ATB, or a folder of such files.")
    is_folder = os.path.isdir(path)
    sources = list(files.below(path, SUFFIX)) if is_folder else [path]
    if not sources:
        raise MsprobeException(_nothing_in(path))
    for source in sources:
        name = os.path.relpath(source, path) if is_folder else os.path.basename(source)
        target = os.path.join(output, (name[: -len(SUFFIX)] if name.endswith(SUFFIX) else name) + suffix)
        try:
            problem = _refused(read_head(source))
            if problem:
                yield ParsedFile(source, "", problem=f"{source}: {problem}")
                continue
            tensor = read(source)
            files.make_folder(os.path.dirname(target) or ".")
            write(target, tensor)
        except (MsprobeException, OSError) as error:
            text = str(error) if isinstance(error, MsprobeException) else f"{source}: {error.strerror}."
            yield ParsedFile(source, "", problem=text)
        else:
            yield ParsedFile(source, target, tensor.dtype, tuple(tensor.values.shape))


def _nothing_in(folder: str) -> str:
    """The reason why nothing in a folder is converted."""
    # Dumps of kernels have no suffix.
    for path in islice(files.below(folder), _MOST_LOOKED_AT):
        if os.path.isfile(path) and _is_ascend_dump(read_head(path)):
            return f"{path}: {_ASCEND_DUMP}"
    return f"{folder} has no file *{SUFFIX}; give a folder with tensors of ATB."


def _refused(head: bytes) -> str:
    """The reason why a file with this beginning is not converted; empty if it is a tensor of ATB."""
    if is_atb(head):
        return ""
    if head.startswith(_NUMPY):
        return "it is a .npy file already."
    if head.startswith(_ZIP):
        return "it is an archive, such as a .pt or .npz file, and no tensor of ATB."
    if _is_ascend_dump(head):
        return _ASCEND_DUMP
    return "it is no tensor of ATB: it does not begin with a header such as $Version=1.0."


def _is_ascend_dump(head: bytes) -> bool:
    """True for the length of a message in 8 bytes, and the message: its version, field 1, or its time, field 2."""
    if len(head) < 10:
        return False
    length = int.from_bytes(head[:8], "little")
    return 0 < length < 1 << 32 and head[8:9] in (b"\x0a", b"\x10")
