"""Tensors as ``.pt`` files, from their own memory.

`torch.load` reads the same tensor from them as from what `torch.save` writes, whose archive this is: a zip file that
compresses nothing, in which ``data/0`` holds the elements and ``data.pkl`` says what tensor they make. But torch.save
takes 180 us for 100 KB, of which 50 are the system's, mostly for what is the same for every tensor of a type and shape.
"""

from __future__ import annotations

import functools
import io
import pickle
import struct
import sys
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from probe.backends.shared import tensors
from probe.backends.shared.tensors import npy_file
from probe.backends.torch import internals
from probe.backends.torch.guards import beneath_transforms, unobserved
from probe.backends.torch.originals import functions, own
from probe.backends.torch.tensors.statistics import bytes_of, copied_bytes, fetched_bytes, waits
from probe.common.interfaces import DeviceFile, TensorFile

SUFFIX = ".pt"
_ROOT = "archive/"
"""The folder that torch.save uses in an archive that is written to a stream."""
_ALIGNMENT = 64
"""The alignment of `data/0`, so that a file mapped into memory serves as a tensor."""

# The types whose form in `data.pkl` has been the same since PyTorch 1.6. torch.save knows how it writes the others.
_STORAGES: dict[torch.dtype, Any] = {
    torch.float64: torch.DoubleStorage,
    torch.float32: torch.FloatStorage,
    torch.float16: torch.HalfStorage,
    torch.bfloat16: torch.BFloat16Storage,
    torch.int64: torch.LongStorage,
    torch.int32: torch.IntStorage,
    torch.int16: torch.ShortStorage,
    torch.int8: torch.CharStorage,
    torch.uint8: torch.ByteStorage,
    torch.bool: torch.BoolStorage,
    torch.complex64: torch.ComplexFloatStorage,
    torch.complex128: torch.ComplexDoubleStorage,
}
_UNSIGNED = frozenset(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name))


def tensor_file(tensor: torch.Tensor) -> TensorFile:
    """The file of a dense tensor; of a contiguous one in host memory it shares the memory.

    It is a ``.npy`` file if this release of torch has no form for a tensor of this dtype.
    """
    if tensor.dtype in _UNSIGNED and not _torch_saves(tensor.dtype):
        return cast(TensorFile, beneath_transforms(_as_array, tensor))
    if tensor.dtype not in _STORAGES:
        return cast(TensorFile, beneath_transforms(_saved_by_torch, tensor))
    return _file_of(bytes_of(tensor), tensor.dtype, tensor.shape)


def device_file(tensor: torch.Tensor) -> DeviceFile | None:
    """The file of a dense tensor on a device, to be read later; ``None`` of one that is better read at once."""
    if tensor.dtype not in _STORAGES or not waits(tensor):
        return None
    copied = copied_bytes(tensor)
    return DeviceFile(SUFFIX, own.numel(copied), (copied, tensor.dtype, tensor.shape), _read)


def _read(held: Sequence[DeviceFile]) -> list[TensorFile]:
    values = [each.values for each in held]
    read = unobserved(fetched_bytes, [copied for copied, _, _ in values])
    return [_file_of(data, dtype, shape) for data, (_, dtype, shape) in zip(read, values)]


def _file_of(data: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...]) -> TensorFile:
    crc = tensors.crc32_of(data)
    head, tail = archive(dtype, shape).around(crc)
    return TensorFile(SUFFIX, head, data.data, tail, crc)


@functools.cache
def _torch_saves(dtype: torch.dtype) -> bool:
    """Tell if torch.save takes a tensor of `dtype`. PyTorch 2.5 does not take the unsigned types but uint8."""
    try:
        torch.save(functions.empty((), dtype=dtype), io.BytesIO())
    except KeyError:
        return False
    return True


def _as_array(tensor: torch.Tensor) -> TensorFile:
    return npy_file(own.numpy(_contiguous_copy(tensor)))


def _saved_by_torch(tensor: torch.Tensor) -> TensorFile:
    stream = io.BytesIO()
    torch.save(_contiguous_copy(tensor), stream)
    content = stream.getbuffer()
    return TensorFile(SUFFIX, b"", content, b"", tensors.crc32_of(content))


def _contiguous_copy(tensor: torch.Tensor) -> torch.Tensor:
    values = own.resolve_neg(own.resolve_conj(own.detach(tensor)))
    return cast(torch.Tensor, own.clone(own.cpu(values), memory_format=torch.contiguous_format))


class Archive(NamedTuple):
    """The file of any tensor of one type and shape, but for its elements and the two places that have their CRC-32."""

    head: tuple[bytes, bytes]
    tail: tuple[bytes, bytes]

    def around(self, crc: int) -> tuple[bytes, bytes]:
        """The bytes before the elements, and the bytes after them."""
        number = crc.to_bytes(4, "little")
        return number.join(self.head), number.join(self.tail)


@functools.lru_cache(maxsize=1024)
def archive(dtype: torch.dtype, shape: tuple[int, ...]) -> Archive:
    """Lay out the file of a contiguous tensor."""
    elements = 1
    for length in shape:
        elements *= length
    small = {
        "data.pkl": _pickled(_STORAGES[dtype], elements, shape),
        "byteorder": sys.byteorder.encode(),
        "version": b"3\n",
    }
    front, directory = b"", b""
    for name, content in small.items():
        entry = _Entry(name, len(content), len(front))
        crc = zlib.crc32(content).to_bytes(4, "little")
        directory += crc.join(entry.in_directory())
        front += crc.join(entry.before_content()) + content
    # The last, so that even where it needs 64-bit numbers the others do not.
    data = _Entry("data/0", elements * own.element_size(functions.empty((), dtype=dtype)), len(front))
    before, after = data.before_content(_ALIGNMENT)
    end = data.offset + len(before) + 4 + len(after) + data.size
    start, rest = data.in_directory()
    whole = len(directory) + len(start) + 4 + len(rest)
    return Archive((front + before, after), (directory + start, rest + _end(len(small) + 1, whole, end)))


_BY_REFERENCE = 0xFFFFFFFF
"""In a field of 32 bits: the number is in a field of 64 bits elsewhere."""
_ZIP64_VERSION = 45
"""The version of the zip format that is needed for 64-bit sizes, by its specification: 4.5."""
_FIRST_DAY = 0x0021
"""1980-01-01, the first day there is in a zip file: equal tensors are equal files."""


class _Entry(NamedTuple):
    """A file in the archive. Its header and its line in the directory come in two parts, the CRC-32 between them."""

    name: str
    size: int
    offset: int

    @property
    def _large(self) -> bool:
        return self.size >= _BY_REFERENCE

    def _sizes(self) -> tuple[bytes, bytes]:
        """The sizes as 32-bit numbers, and as an extra field if these are too small."""
        if not self._large:
            return struct.pack("<II", self.size, self.size), b""
        return struct.pack("<II", _BY_REFERENCE, _BY_REFERENCE), struct.pack("<HHQQ", 1, 16, self.size, self.size)

    def _version(self) -> int:
        return _ZIP64_VERSION if self._large else 20

    def before_content(self, alignment: int = 1) -> tuple[bytes, bytes]:
        """The header of a file, as long as it takes for the content to begin at a multiple of `alignment`."""
        path = (_ROOT + self.name).encode()
        sizes, extra = self._sizes()
        end = self.offset + 30 + len(path) + len(extra)
        if end % alignment:
            # An extra field of its own, as torch.save has it; the field's head takes four bytes.
            filler = -(end + 4) % alignment
            extra += struct.pack("<2sH", b"FB", filler) + b"Z" * filler
        before = struct.pack("<4sHHHHH", b"PK\3\4", self._version(), 0, 0, 0, _FIRST_DAY)
        return before, sizes + struct.pack("<HH", len(path), len(extra)) + path + extra

    def in_directory(self) -> tuple[bytes, bytes]:
        path = (_ROOT + self.name).encode()
        sizes, extra = self._sizes()
        before = struct.pack("<4sHHHHHH", b"PK\1\2", self._version(), self._version(), 0, 0, 0, _FIRST_DAY)
        rest = struct.pack("<HHHHHII", len(path), len(extra), 0, 0, 0, 0, self.offset)
        return before, sizes + rest + path + extra


def _end(entries: int, size: int, offset: int) -> bytes:
    """The part that follows the directory of `size` bytes at `offset`."""
    if offset < _BY_REFERENCE:
        return struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, entries, entries, size, offset, 0)
    return (
        struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, _ZIP64_VERSION, _ZIP64_VERSION, 0, 0, entries, entries, size, offset)
        + struct.pack("<4sIQI", b"PK\6\7", 0, offset + size, 1)
        + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, entries, entries, size, _BY_REFERENCE, 0)
    )


class _Reference:
    """Stands for the elements, which are not in the pickle."""

    def __init__(self, storage: Any, elements: int) -> None:
        self.name = ("storage", storage, "0", "cpu", elements)


class _Tensor:
    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return internals.rebuild_tensor, self._arguments


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.name if isinstance(value, _Reference) else None


def _pickled(storage: Any, elements: int, shape: tuple[int, ...]) -> bytes:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    stream = io.BytesIO()
    tensor = _Tensor(_Reference(storage, elements), 0, tuple(shape), tuple(reversed(strides)), False, OrderedDict())
    _Pickler(stream, protocol=2).dump(tensor)
    return stream.getvalue()
