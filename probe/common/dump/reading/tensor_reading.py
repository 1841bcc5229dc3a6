"""The values of one tensor, from the file a framework wrote. Nothing in such a file is executed."""

from __future__ import annotations

import math
import os
import pickletools
import struct
import sys
import zipfile
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from probe.common import files
from probe.common.errors import FileCheckException, MissingDependency, MsprobeException

_LARGEST_PICKLE = 1 << 20
"""Bytes; a guess: that of one tensor has some hundred."""
_MOST_ENTRIES = 1000
"""Entries of an archive; a guess: that of one tensor has fewer than ten."""
_END = b"PK\5\6"
_END_SIZE = 22
"""Bytes of the end of an archive without a comment."""
_HEADER = struct.Struct("<26xHH")
"""Before the content of an entry: it ends in the lengths of the name and of the extra field, which follow it."""

# Whatever `data.pkl` of a dense tensor of any release names, besides types such as `torch.FloatStorage`.
_MADE_BY = frozenset(
    (
        "torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3",
        "torch._utils _rebuild_parameter", "collections OrderedDict", "torch Size",
        "torch.storage UntypedStorage", "torch.storage TypedStorage",
    )
)  # fmt: skip
_TYPES = ("float", "bfloat", "int", "uint", "complex", "bool", "double", "half", "long", "short")


class CheckedFile(NamedTuple):
    """A ``.pt`` file that may be given to torch, and the facts on it."""

    size: int
    """In bytes."""
    is_archive: bool
    """True for the form since PyTorch 1.6."""
    form: Optional[bytes] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """Files of equal forms differ in nothing but the bytes of their elements; ``None`` where that is not known."""
    elements: tuple[int, int] = (0, 0)
    """The offset of the elements, and their number."""


def check_pt(path: str) -> CheckedFile:
    """Look at the file `path` without making anything of it.

    Raises:
        OSError: it cannot be read.
        FileCheckException: it is an archive that `torch.save` does not write, or not of a dense tensor.
    """
    with files.open_for_reading(path) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        if stream.read(4) != b"PK\3\4":
            return CheckedFile(size, False)
        try:
            return _checked(stream, size)
        except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
            # ValueError: also a pickle that cannot be taken apart.
            wrong = str(error) or "it ends too early"
    raise FileCheckException(f"{path}: not a tensor: {wrong}.")


def _checked(stream: BinaryIO, size: int) -> CheckedFile:
    check_end(stream, size)
    with zipfile.ZipFile(stream) as archive:
        entries = checked_entries(archive, size, _MOST_ENTRIES)
        pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > _LARGEST_PICKLE:
            raise ValueError("its archive has no data.pkl of one tensor")
        if any(entry.filename.endswith("/constants.pkl") for entry in entries):
            raise ValueError("it is a program of TorchScript")
        content = archive.read(pickles[0])
        wrong = _wrong_in_pickle(content)
        if wrong is not None:
            raise ValueError(wrong)
        orders = [archive.read(entry) for entry in entries if entry.filename.endswith("/byteorder")]
        elements = [entry for entry in entries if entry.filename.endswith("/data/0")]
        if len(elements) != 1 or orders not in ([], [sys.byteorder.encode()]):
            return CheckedFile(size, True)
        return CheckedFile(size, True, content, extent(stream, elements[0]))


def check_end(stream: BinaryIO, size: int) -> None:
    """Check that an archive ends where the file does.

    Where two readers could take different places for the end of an archive, they could see different files in it.

    Raises:
        ValueError: it does not.
    """
    stream.seek(-min(_END_SIZE, size), 2)
    if stream.read(4) != _END:
        raise ValueError("its archive is cut off or has something after its end")


def checked_entries(archive: zipfile.ZipFile, size: int, most: int) -> list[zipfile.ZipInfo]:
    """The entries of an archive of `size` bytes, at most so many, if `torch.save` can have written it.

    Raises:
        ValueError: it cannot.
    """
    entries = archive.infolist()
    if len(entries) > most or min((entry.header_offset for entry in entries), default=1) != 0:
        raise ValueError("its archive is not one of torch.save")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("its archive is compressed, which those of torch.save are not")
    # Entries may lie upon each other.
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError(f"its archive tells of more bytes than the {size} it has")
    if len({entry.filename.lower() for entry in entries}) != len(entries):
        raise ValueError("its archive has two entries of one name")
    return entries


def extent(stream: BinaryIO, entry: zipfile.ZipInfo) -> tuple[int, int]:
    """The position at which the content of an entry begins, and its length."""
    stream.seek(entry.header_offset)
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    return entry.header_offset + _HEADER.size + sum(_HEADER.unpack(header)), entry.file_size


@lru_cache(maxsize=1024)
def _wrong_in_pickle(content: bytes) -> str | None:
    """The name in a pickle that a tensor does not need; equal ones, as of one type and shape, are looked at once."""
    for operation, argument, _ in pickletools.genops(content):
        if operation.name == "GLOBAL":
            if argument not in _MADE_BY and not _is_type(str(argument)):
                return f"it asks for {str(argument)[:80].replace(' ', '.')}, which no dense tensor needs"
        elif operation.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"):
            return f"its pickle has {operation.name}, which no dense tensor needs"
    return None


def _is_type(name: str) -> bool:
    """True if `name` is that of an element's type, or of a storage of such."""
    if not name.startswith("torch "):
        return False
    kind = name.partition(" ")[2]
    return kind.lower().startswith((*_TYPES, "byte", "char")) and (kind.endswith("Storage") or kind.islower())


# --- tensor reading


Array = NDArray[Any]

_LARGE = 1 << 20
"""Bytes from which on it pays to map a file into memory."""
_MOST_REPEATED = 256 << 20
"""Bytes that a tensor may have though its file has less: one that was saved as a view repeats its elements."""
_LONGEST_REASON = 300
"""Characters of an error that are shown; a guess."""


def read_tensor(path: str, mapped: bool = False) -> Array:
    """The values in a ``.npy`` or ``.pt`` file; what numpy has no type for is widened to float32.

    Args:
        path: the file.
        mapped: leave the values of a large file where they are: they are fetched when they are looked at, cannot be
            written to, and the file must not change meanwhile.

    Raises:
        FileCheckException: the file is missing, damaged or of another kind.
        MissingDependency: a ``.pt`` file, and torch is not installed.
    """
    try:
        if path.endswith(".npy"):
            return read_npy(path, mapped and os.path.getsize(path) >= _LARGE)
        if path.endswith(".pt"):
            return _read_pt(path, mapped and os.path.getsize(path) >= _LARGE)
    except (MsprobeException, MemoryError):
        raise
    except OSError as error:
        raise FileCheckException(f"{path}: cannot be read: {error.strerror or error}.") from None
    except Exception as error:
        # For a damaged file, torch and numpy raise errors of many classes, among them RuntimeError and KeyError.
        raise FileCheckException(f"{path}: not a tensor: {_first_line(error)}.") from None
    raise FileCheckException(f"{path} is no file of a tensor; allowed: names that end with .pt or .npy.")


Entry = tuple[Array, str]
"""The values of a tensor, and the name of its dtype."""


def read_entries(path: str) -> Entry | list[Entry] | dict[str, Entry | list[Entry]]:
    """Content of a ``.pt`` file: a tensor, a list of tensors, or a dictionary of both.

    Raises:
        OSError: it cannot be read.
        FileCheckException: the file is damaged, or holds something else.
        MissingDependency: torch is not installed.
    """
    torch, checked = _torch(path), check_pt(path)
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except (MemoryError, OSError):
        raise
    except Exception as error:
        # As in read_tensor.
        raise FileCheckException(f"{path}: no tensors: {_first_line(error)}.") from None
    entries: Entry | list[Entry] | dict[str, Entry | list[Entry]]
    entries = _entries(value, path, max(checked.size, _MOST_REPEATED), torch.Tensor)
    return entries


def _entries(value: Any, path: str, most: int, tensor: type) -> Any:
    if isinstance(value, dict):
        return {str(key): _entries(each, path, most, tensor) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_entries(each, path, most, tensor) for each in value]
    if not isinstance(value, tensor):
        raise FileCheckException(f"{path}: not a tensor: it holds a {type(value).__name__}.")
    claimed = value.numel() * value.element_size()  # type: ignore[attr-defined]
    if claimed > most:
        raise FileCheckException(f"{path}: not a tensor: it stands for {claimed} bytes.")
    return _values(value.detach()), str(value.dtype).rpartition(".")[2]  # type: ignore[attr-defined]


def _first_line(error: Exception) -> str:
    if "weights_only" in str(error):
        # Its advice is to run what the file says.
        return "it holds objects that are no tensors, which are not loaded"
    return str(error).split("\n", 1)[0][:_LONGEST_REASON].rstrip(".") or type(error).__name__


def _torch(path: str) -> Any:
    try:
        import torch
    except ImportError:
        raise MissingDependency(f"{path}: torch is needed to read .pt files: pip install torch.") from None
    return torch


def _read_pt(path: str, mapped: bool) -> Array:
    torch, checked = _torch(path), check_pt(path)
    known = None if mapped or checked.form is None else _known_forms.get(checked.form)
    if known is not None and known.size == checked.elements[1]:
        return known.read(path, checked.elements[0])
    size = checked.size
    # Files of before PyTorch 1.6 are no archives, and only these can be mapped.
    value = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and checked.is_archive)
    if not isinstance(value, torch.Tensor):
        raise FileCheckException(f"{path}: not a tensor: it holds a {type(value).__name__}.")
    claimed = value.numel() * value.element_size()
    # Strides of 0 repeat an element any number of times.
    if claimed > max(size, _MOST_REPEATED):
        raise FileCheckException(f"{path}: not a tensor: it stands for {claimed} bytes, and the file has {size}.")
    value = value.detach()
    if checked.form is not None:
        _remember(checked.form, value)
    return _values(value)


def _values(value: Any) -> Array:
    try:
        return value.numpy()  # type: ignore[no-any-return]
    except (TypeError, RuntimeError):
        # bfloat16, the float8 types, and views that are conjugated or negated.
        resolved = value.resolve_conj().resolve_neg()
        return (resolved if resolved.is_complex() else resolved.float()).numpy()  # type: ignore[no-any-return]


class _Form(NamedTuple):
    """The contents of the files of one form: all elements of a tensor, one after the other."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_bfloat16: bool
    size: int
    """In bytes."""

    def read(self, path: str, start: int) -> Array:
        """The values of such a file, whose elements begin at `start`; torch takes five times as long for a small one.

        Raises:
            OSError: it cannot be read.
            FileCheckException: it has become shorter.
        """
        with files.open_for_reading(path) as stream:
            stream.seek(start)
            values = np.fromfile(stream, self.dtype, self.size // self.dtype.itemsize)
        if values.nbytes != self.size:
            raise FileCheckException(f"{path}: not a tensor: it ends too early.")
        if self.is_bfloat16:
            # The upper half of a float32.
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(self.shape)


_known_forms: dict[bytes, _Form] = {}
_MOST_FORMS = 4096
"""Forms that are kept; a guess: a dump has some hundred dtypes and shapes."""


def _remember(form: bytes, tensor: Any) -> None:
    """Note what files of `form` hold, of which torch has read `tensor`, if it is nothing but its elements in order."""
    name = str(tensor.dtype).rpartition(".")[2]
    is_bfloat16 = name == "bfloat16"
    dtype = np.dtype(np.uint16) if is_bfloat16 else np.dtype(name) if name in _PLAIN else None
    size = tensor.numel() * tensor.element_size()
    if dtype is None or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return
    if tensor.storage_offset() or tensor.untyped_storage().nbytes() != size or len(_known_forms) >= _MOST_FORMS:
        return
    _known_forms[form] = _Form(dtype, tuple(tensor.shape), is_bfloat16, size)


_PLAIN = frozenset(
    ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128")
)


# --- .npy files

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npy(path: str, mapped: bool = False) -> NDArray[Any]:
    """The array in the file `path`; with `mapped` it stays there and is fetched when it is looked at.

    No more memory is taken than the file has bytes.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else, or less than its header says.
    """
    with files.open_for_reading(path) as stream:
        shape, in_columns, dtype = _header(stream)
        offset = stream.tell()
        there = stream.seek(0, 2) - offset
        elements = math.prod(shape)
        # An element without bytes would make any number of them fit.
        if elements * max(dtype.itemsize, 1) > there:
            raise ValueError(f"its header tells of {elements} elements of {dtype}, and {there} bytes follow it")
        order = "F" if in_columns else "C"
        if mapped and elements:
            return np.memmap(stream, dtype, "r", offset, shape, order)  # type: ignore[call-overload, no-any-return]
        stream.seek(offset)
        values: NDArray[Any] = np.fromfile(stream, dtype, elements)
        return values.reshape(shape, order=order)  # type: ignore[call-overload, no-any-return]


def _header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"version {version[0]}.{version[1]} of the format, which arrays of numbers do not need")
    try:
        shape, in_columns, dtype = _HEADERS[version](stream)
    except (MemoryError, RecursionError):
        # Python's parser: the header is short, whatever it says.
        raise ValueError("its header is nested too deeply") from None
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"its header tells of the shape {shape}")
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise ValueError(f"it holds elements of {str(dtype)[:80]}, which are no numbers")
    return shape, in_columns, dtype
