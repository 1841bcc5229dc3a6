"""Zip files that people send each other: written so that equal content gives equal bytes, and read within bounds."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Union

import msgspec

from probe.common import files
from probe.common.errors import FileCheckException, MsprobeException

SUFFIX = ".zip"
_SIGNATURE = b"PK\x03\x04"
"""The beginning of a zip file that has members."""
_NAME_AT, _NAME_LENGTH_AT = 30, 26
"""The place of the name of the first member, and of its length, in bytes."""
_PART = 1 << 20
"""Bytes that are copied at once; a guess."""

Content = Union[bytes, str]
"""The content of a member: its bytes, or the path of a file that has them."""


class Limits(msgspec.Struct, frozen=True):
    """The most that an archive may hold; it is held against its table of contents before anything is unpacked.

    Args:
        members: members.
        member_bytes: bytes of one member, unpacked.
        total_bytes: bytes of all members, unpacked.
        what: the kind of archive, for messages: ``pack``.
    """

    members: int
    member_bytes: int
    total_bytes: int
    what: str = "pack"


# --- writing


def check_name(path: str) -> None:
    """Refuse a name that is none of a pack, or a link.

    Raises:
        FileCheckException: so it is.
    """
    if not path.endswith(SUFFIX):
        raise FileCheckException(f"the output is {path}; allowed: a file name that ends with {SUFFIX}.")
    if os.path.islink(path):
        raise FileCheckException(f"{path} is a symbolic link; give the file it points to instead.")


def write(path: str, members: Iterable[tuple[str, Content]]) -> None:
    """Write an archive, which is replaced; a process that is killed meanwhile leaves no half of it.

    Raises:
        FileCheckException: it cannot be written, or a file of a member cannot be read.
    """
    check_name(path)
    files.make_folder(os.path.dirname(os.path.abspath(path)))
    try:
        with files.replacing(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members:
                _write_member(archive, name, content)
    except OSError as error:
        raise FileCheckException(f"{error.filename or path} cannot be packed: {error.strerror or error}.") from None


def _write_member(archive: zipfile.ZipFile, name: str, content: Content) -> None:
    # Without the time, so that equal content gives equal archives.
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    if isinstance(content, bytes):
        archive.writestr(info, content)
        return
    with files.open_for_reading(content) as source:
        # Known beforehand, it decides whether the member needs a header for more than 4 GiB.
        info.file_size = os.fstat(source.fileno()).st_size
        with archive.open(info, "w") as member:
            while part := source.read(_PART):
                member.write(part)


# --- reading


def first_member(path: str) -> str | None:
    """The name of the first member of a zip file, cut short or not; ``None`` of any other file."""
    try:
        with files.open_for_reading(path) as stream:
            head = stream.read(_NAME_AT)
            length = int.from_bytes(head[_NAME_LENGTH_AT : _NAME_LENGTH_AT + 2], "little")
            return stream.read(length).decode("utf-8", "replace") if head.startswith(_SIGNATURE) else None
    except OSError:
        return None


@contextlib.contextmanager
def opened(path: str, limits: Limits) -> Iterator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]]:
    """An archive and its members, folders aside; none of them leaves it, is a link, or is larger than allowed.

    Raises:
        FileCheckException: it cannot be read, is cut short or damaged, or holds what is not allowed; what reading a
            member raises becomes one as well.
    """
    try:
        with files.open_for_reading(path) as stream, zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
            _check(path, infos, limits)
            yield archive, [info for info in infos if not info.is_dir()]
    except OSError as error:
        raise FileCheckException(f"{path} cannot be read: {error.strerror or error}.") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise FileCheckException(f"{path} is not a {limits.what}: {error}.") from None
    except MsprobeException:
        raise
    except Exception as error:
        # A damaged stream raises whatever its decompressor has, such as zlib.error.
        raise FileCheckException(f"{path} is damaged: {error}.") from None


def _check(path: str, infos: list[zipfile.ZipInfo], limits: Limits) -> None:
    seen: set[str] = set()
    total = 0
    if len(infos) > limits.members:
        raise FileCheckException(f"{path} has {len(infos)} members; a {limits.what} has at most {limits.members}.")
    for info in infos:
        name, total = info.filename, total + info.file_size
        wrong = ""
        if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
            wrong = f"leaves the folder of the {limits.what}"
        elif stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            wrong = "is a link or a device"
        elif name in seen:
            wrong = "is there twice"
        elif info.file_size > limits.member_bytes or total > limits.total_bytes:
            wrong = f"has {info.file_size} bytes, more than a {limits.what} may hold"
        elif info.flag_bits & 1:
            wrong = "is encrypted"
        if wrong:
            raise FileCheckException(f"{path} is refused: member {name!r} {wrong}.")
        seen.add(name)


def parts(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of a member of an opened archive, part by part.

    Raises:
        FileCheckException: it has another size than the table of contents says.
    """
    left = info.file_size
    with archive.open(info) as stream:
        # The table may say less than there is.
        while part := stream.read(min(left + 1, _PART)):
            left -= len(part)
            if left < 0:
                break
            yield part
    if left:
        raise FileCheckException(f"{path} is refused: member {info.filename!r} has another size than its header says.")


def copy_out(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: BinaryIO) -> None:
    """Write the content of a member to an open file.

    Raises:
        FileCheckException: it has another size than the table of contents says.
    """
    for part in parts(path, archive, info):
        target.write(part)
