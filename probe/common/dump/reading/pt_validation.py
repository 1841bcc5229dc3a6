"""Check that a ``.pt`` file is what `torch.save` writes of one tensor, before torch makes anything of it.

``weights_only`` keeps torch from executing what a file says, but not from taking memory: an archive may be compressed a
thousand times over, and its pickle may ask for a ``bytearray`` or a ``Tensor`` of any size. The pickle is looked at
here, by an allow-list of names and a limit of its size; torch's own unpickler makes the tensor.
"""

from __future__ import annotations

import pickletools
import struct
import sys
import zipfile
from functools import lru_cache
from typing import BinaryIO, NamedTuple, Optional

from probe.common import files
from probe.common.errors import FileCheckException

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
