"""Files of `torch.save`, read without torch: the pickle as data, and tensors where they lie in the file."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterable
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from probe.checkpoint.readers import pickles
from probe.checkpoint.readers.pickles import Inert, Name, Persistent
from probe.checkpoint.stored import File, InMemory, Shape, Stored, Tensor
from probe.common import files
from probe.common.dump.reading.tensor_reading import check_end, checked_entries, extent
from probe.common.errors import DumpFormatError
from probe.common.numerics.formats import plain_name
from probe.common.numerics.rounding import word_type

_LARGEST_PICKLE = 1 << 28
"""Bytes of the pickle of a file, without its tensors; a guess beyond any known checkpoint."""
_MOST_ENTRIES = 1_000_000
"""Entries of the archive; a guess beyond any known checkpoint."""
_MOST_REPEATED = 256 << 20
"""Bytes that a tensor may stand for though its storage has fewer; see `probe.common.dump.reading.tensor_reading`."""
_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of files of before PyTorch 1.6."""
_DEEPEST = 200
"""Levels of nested values, well below Python's limit of recursion."""
_DAMAGED = (
    zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError,
    OverflowError, RecursionError, struct.error,
)  # fmt: skip
"""Errors of reading what a damaged file says of its tensors."""
_ARRAYS = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
_STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "Untyped": "uint8",
}  # fmt: skip
"""The elements of each class of storage."""


class Placement(NamedTuple):
    """The part of a tensor that one rank holds."""

    shape: Shape
    """Shape of the whole tensor."""
    dimensions: tuple[int | None, ...]
    """For each dimension of the mesh the dimension that is split over it; ``None`` if each rank has all."""


class Content(NamedTuple):
    """Content of a file: plain values with tensors among them, and the names of objects that were not made."""

    value: Any
    unknown: list[str]
    placements: dict[int, Placement]
    """By the ``id`` of a tensor that is a part of one."""


def read_torch(path: str) -> Content:
    """The content of a file.

    Raises:
        FileCheckException, DumpFormatError: it cannot be read, or is damaged, or needs something unknown for a tensor.
    """
    file = File(path)
    start = file.read(0, min(4, file.size))
    if start[:4] == b"PK\3\4":
        return read_archive(file, 0, file.size)
    if start[:1] == b"\x80":
        try:
            return _read_legacy(file)
        except _DAMAGED as error:
            raise _damaged(file.path, error) from None
    raise DumpFormatError(f"{path}: not a file of torch.save: it begins with {start!r}; allowed: archives and pickles.")


class _Section(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: File, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        size = max(0, min(len(view), self._size - self._at))
        self._file.read_into(self._start + self._at, view[:size])
        self._at += size
        return size


def read_archive(file: File, start: int, size: int) -> Content:
    """The content of an archive in a part of a file.

    Raises:
        DumpFormatError: it is damaged, or no archive of `torch.save`.
    """
    try:
        stream = cast(BinaryIO, io.BufferedReader(_Section(file, start, size), 1 << 16))
        check_end(stream, size)
        with zipfile.ZipFile(stream) as archive:
            entries = {entry.filename: entry for entry in checked_entries(archive, size, _MOST_ENTRIES)}
            found = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(found) != 1 or entries[found[0]].file_size > _LARGEST_PICKLE:
                raise ValueError("it has no data.pkl, or a huge one")
            folder = found[0][: -len("data.pkl")]
            if f"{folder}constants.pkl" in entries:
                raise ValueError("it is a program of TorchScript; save its state_dict instead")
            order = archive.read(entries[f"{folder}byteorder"]) if f"{folder}byteorder" in entries else b"little"
            value = pickles.load(io.BytesIO(archive.read(found[0])), file.path)

            def storage(key: str) -> tuple[int, int]:
                entry = entries.get(f"{folder}data/{key}")
                if entry is None:
                    raise DumpFormatError(f"{file.path}: storage {key!r} is missing in it; copy the file again.")
                begin, length = extent(stream, entry)
                return start + begin, length

            return _Resolving(file, storage, order == b"big").content(value)
    except _DAMAGED as error:
        raise _damaged(file.path, error) from None


def _damaged(path: str, error: Exception) -> DumpFormatError:
    if isinstance(error, DumpFormatError):
        return error
    wrong = " ".join(str(error).split())[:200] or "it ends too early"
    return DumpFormatError(f"{path}: not a checkpoint of torch.save: {wrong}; copy or save it again.")


def _read_legacy(file: File) -> Content:
    """The content of a file of before PyTorch 1.6: pickles one after the other, then the storages."""
    with files.open_for_reading(file.path) as stream:
        value = pickles.load(stream, file.path)
        if value != _MAGIC:
            # A plain pickle: of arrays, say.
            return _Resolving(file, lambda key: (0, 0), False).content(value)
        pickles.load(stream, file.path)
        system, value, keys = (pickles.load(stream, file.path) for _ in range(3))
        at = stream.tell()
    positions: dict[str, tuple[int, int]] = {}
    sizes = _storages_in(value, {}, set())
    for key in keys:
        (count,) = struct.unpack("<q", file.read(at, 8))
        size = sizes.get(str(key), 1)
        positions[str(key)] = (at + 8, count * size)
        at += 8 + count * size

    def storage(key: str) -> tuple[int, int]:
        if key not in positions:
            raise DumpFormatError(f"{file.path}: storage {key!r} is missing in it; copy the file again.")
        return positions[key]

    big = isinstance(system, dict) and system.get("little_endian") is False
    return _Resolving(file, storage, big).content(value)


def _storages_in(value: Any, found: dict[str, int], seen: set[int]) -> dict[str, int]:
    """The bytes of an element of each storage that is asked for."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Persistent):
            identity = one.id
            if isinstance(identity, tuple) and len(identity) > 2:
                dtype = _storage_dtype(identity[1])
                found[str(identity[2])] = 1 if dtype is None else _itemsize(dtype)
            continue
        if isinstance(one, (dict, list, tuple, set, Inert)):
            if id(one) in seen:
                continue
            seen.add(id(one))
        if isinstance(one, Inert):
            waiting += [one.args, one.state, one.pairs, one.items]
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, (list, tuple, set)):
            waiting += one
    return found


def _itemsize(dtype: str) -> int:
    found = word_type(dtype)
    return 1 if found is None else found.itemsize


def _storage_dtype(name: Any) -> str | None:
    if isinstance(name, Name):
        last = name.name.rpartition(".")[2]
        if last.endswith("Storage"):
            return _STORAGES.get(last[: -len("Storage")])
    return None


class _Resolving:
    """Puts tensors where the pickle has calls that make them."""

    def __init__(self, file: File, storage: Any, big: bool) -> None:
        self._file, self._storage, self._big = file, storage, big
        self._known: dict[int, Any] = {}
        self._kept: list[Any] = []
        self._unknown: dict[str, None] = {}
        self._placements: dict[int, Placement] = {}

    def content(self, value: Any) -> Content:
        found = self._plain(value, 0)
        if self._places(found, {}) > pickles.MOST_VALUES:
            raise DumpFormatError(
                f"{self._file.path}: a value in it holds itself, or a few values stand for more than "
                f"{pickles.MOST_VALUES}; it is no checkpoint."
            )
        return Content(found, list(self._unknown), self._placements)

    def _places(self, value: Any, known: dict[int, int]) -> int:
        """The number of values in nested ones, each counted as often as it occurs."""
        inside: Iterable[Any]
        if isinstance(value, dict):
            inside = value.values()
        elif isinstance(value, Inert):
            inside = (value.args, value.state, value.items, value.pairs)
        elif isinstance(value, (list, tuple)) and not isinstance(value, (Name, Persistent)):
            inside = value
        else:
            return 1
        if id(value) not in known:
            # Of a value that holds itself there is no end.
            known[id(value)] = pickles.MOST_VALUES + 1
            known[id(value)] = 1 + sum(self._places(each, known) for each in inside)
        return known[id(value)]

    def _plain(self, value: Any, depth: int) -> Any:
        if not isinstance(value, (dict, list, tuple, set, frozenset, Inert)) or isinstance(value, (Name, Persistent)):
            return value
        if id(value) in self._known:
            return self._known[id(value)]
        if depth > _DEEPEST:
            raise DumpFormatError(f"{self._file.path}: values are nested more than {_DEEPEST} levels deep.")
        self._kept.append(value)
        found: Any
        if isinstance(value, dict):
            found = self._known[id(value)] = {}
            for key, each in value.items():
                found[self._plain(key, depth + 1) if isinstance(key, (tuple, Inert)) else key] = self._plain(
                    each, depth + 1
                )
        elif isinstance(value, list):
            found = self._known[id(value)] = []
            found += [self._plain(each, depth + 1) for each in value]
        elif isinstance(value, Inert):
            # Of itself nothing can hold more than this.
            self._known[id(value)] = value
            found = self._known[id(value)] = self._made(value, depth)
        else:
            found = self._known[id(value)] = type(value)(
                each if isinstance(each, Name) else self._plain(each, depth + 1) for each in value
            )
        return found

    def _made(self, value: Inert, depth: int) -> Any:
        name = value.name
        if name.startswith(("torch._utils._rebuild", "torch._tensor._rebuild")):
            return self._tensor(value)
        if name in _ARRAYS:
            array = self._array(value)
            if array is not None:
                return array
        if name == "torch.storage._load_from_bytes":
            raise DumpFormatError(f"{self._file.path}: it holds a storage within a pickle; save it with torch.save.")
        if name.startswith("torch") and name.endswith("Tensor"):
            self._refuse(name)
        if not name.startswith(("torch.", "numpy.", "collections.", "builtins.", "argparse.", "datetime.", "pathlib.")):
            self._unknown[name] = None
        made = Inert(value.of, tuple(self._plain(each, depth + 1) for each in value.args))
        made.state = self._plain(value.state, depth + 1)
        made.items = self._plain(value.items, depth + 1)
        made.pairs = self._plain(value.pairs, depth + 1)
        return made

    def _refuse(self, name: str) -> None:
        raise DumpFormatError(
            f"{self._file.path}: a tensor in it is made by {name[:100]}, which is not known; save plain tensors "
            "(a state_dict of dense tensors) instead."
        )

    def _tensor(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        if not isinstance(value, Inert):
            self._refuse(type(value).__name__)
        last, args = value.name.rpartition(".")[2], value.args
        if last in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
            return self._tensor(args[0])
        if last == "_rebuild_from_type_v2":
            return self._tensor_of_type(*args[:4])
        if last in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return self._dense(args[0], args[1], args[2], args[3], None)
        if last == "_rebuild_tensor_v3":
            return self._dense(args[0], args[1], args[2], args[3], args[6])
        if last == "_rebuild_qtensor":
            return self._dense(args[0], args[1], args[2], args[3], None)
        self._refuse(value.name)
        raise AssertionError

    def _tensor_of_type(self, rebuild: Any, kind: Any, args: Any, state: Any) -> Tensor:
        if isinstance(kind, Name) and kind.name.endswith(".DTensor") and isinstance(state, tuple):
            fields = state[1]
            local = self._tensor(fields["_local_tensor"])
            placements = tuple(
                each.fields.get("dim") if each.name.endswith("Shard") else None
                for each in fields["_spec"].fields["placements"]
            )
            # The arguments are the class, the dtype, and the shape of the whole.
            self._placements[id(local)] = Placement(tuple(map(int, args[2])), placements)
            return local
        return self._tensor(Inert(rebuild, tuple(args)))

    def _dense(self, storage: Any, offset: Any, shape: Any, strides: Any, dtype: Any) -> Tensor:
        if isinstance(storage, Inert) and storage.args and isinstance(storage.args[0], Persistent):
            storage = storage.args[0]
        if not isinstance(storage, Persistent) or not isinstance(storage.id, tuple) or len(storage.id) < 5:
            self._refuse("a storage of unknown form")
        _, kind, key = storage.id[:3]
        element = plain_name(dtype.name) if isinstance(dtype, Name) else _storage_dtype(kind)
        if element is None or word_type(element) is None:
            shown = dtype.name if isinstance(dtype, Name) else getattr(kind, "name", kind)
            raise DumpFormatError(f"{self._file.path}: a tensor in it has the unknown dtype {shown}.")
        shape, strides = tuple(map(int, shape)), tuple(map(int, strides))
        begin, length = self._storage(str(key))
        itemsize = _itemsize(element)
        last = int(offset) + sum((size - 1) * stride for size, stride in zip(shape, strides))
        if min((int(offset), *shape, *strides), default=0) < 0 or (math.prod(shape) and (last + 1) * itemsize > length):
            raise DumpFormatError(
                f"{self._file.path}: storage {key!r} has {length} bytes, but a tensor of shape {list(shape)} needs "
                f"{(last + 1) * itemsize}; copy the file again."
            )
        if math.prod(shape) * itemsize > max(length, _MOST_REPEATED):
            raise DumpFormatError(
                f"{self._file.path}: a tensor stands for {math.prod(shape) * itemsize} bytes of {length}."
            )
        return Stored(self._file, begin + int(offset) * itemsize, element, shape, strides, self._big and itemsize > 1)

    def _array(self, value: Inert) -> Tensor | None:
        """An array of numpy within the pickle."""
        state = value.state
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[4], bytes):
            return None
        _, shape, dtype, is_fortran, data = state
        code = dtype.args[0] if isinstance(dtype, Inert) and dtype.args else ""
        if not isinstance(code, str) or code[:1] not in "fiubc" or not code[1:].isdigit():
            return None
        kind = np.dtype(code)
        if math.prod(shape) * kind.itemsize != len(data):
            raise DumpFormatError(f"{self._file.path}: an array in it has another size than its shape; copy it again.")
        return InMemory(np.frombuffer(data, kind).reshape(tuple(shape), order="F" if is_fortran else "C"))
