"""Folders and files of a dump: 0750 and 0640, never through a symbolic link, never half-written."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Union

from typing_extensions import TypeAlias

from probe.common.errors import FileCheckException

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

Buffer: TypeAlias = Union[bytes, memoryview]

FOLDER_MODE = 0o750
"""See `FILE_MODE`, which stands with it."""
FILE_MODE = 0o640
"""Permissions of what the tool makes: its user writes, and its group reads."""
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_UNFINISHED = ".tmp"
_LONGEST_NAME = 255
"""Bytes of a file's name, the limit of most file systems."""
_BUFFER = 1 << 20
"""Bytes of the buffer of a written file; a guess."""


def make_folder(path: str) -> bool:
    """Create `path` and what is missing above it; false if it is there already.

    Raises:
        FileCheckException: `path` is a symbolic link or a file, or cannot be created.
    """
    # Nearly always one of these two is the case.
    try:
        os.mkdir(path, FOLDER_MODE)
        return True
    except OSError:
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.lstat(path).st_mode):
                return False
    _make_with_those_above(path)
    return True


def _make_with_those_above(path: str) -> None:
    if os.path.islink(path):
        raise FileCheckException(f"{path} is a symbolic link; give the folder it points to instead.")
    missing = []
    part = os.path.abspath(path)
    while not os.path.isdir(part):
        if os.path.lexists(part):
            if os.path.isdir(part):
                break  # another rank made it between the two questions
            raise FileCheckException(f"{part} exists and is not a folder.")
        missing.append(part)
        part = os.path.dirname(part)
    for part in reversed(missing):
        try:
            os.mkdir(part, FOLDER_MODE)
        except FileExistsError:
            # Another rank was faster.
            if os.path.islink(part):
                raise FileCheckException(f"{part} is a symbolic link.") from None
        except OSError as error:
            raise FileCheckException(f"cannot create folder {part}: {error.strerror}.") from error


def open_for_reading(path: str, buffering: int = -1) -> BinaryIO:
    """Open a regular file, also through a link; a pipe or a device, which might never end or answer, is refused.

    Raises:
        OSError: `path` cannot be read, or is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | _NO_WAITING)
    try:
        _refuse_all_but_regular(descriptor, path)
        return os.fdopen(descriptor, "rb", buffering=buffering)
    except BaseException:
        os.close(descriptor)
        raise


def below(folder: str, suffix: str = "") -> Iterator[str]:
    """The files of a folder and of all folders inside whose names end with `suffix`, in the order of their names."""
    for at, folders, names in os.walk(folder):
        folders.sort()
        yield from (os.path.join(at, name) for name in sorted(names) if name.endswith(suffix))


def open_for_writing(path: str, append: bool = False) -> BinaryIO:
    """Open a regular file for writing; an existing one is emptied unless `append`.

    Raises:
        OSError: among others when `path` is a symbolic link, or a pipe, for whose reader one would have to wait.
    """
    flags = os.O_WRONLY | os.O_CREAT | NO_FOLLOW | _NO_WAITING | (os.O_APPEND if append else os.O_TRUNC)
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        _refuse_all_but_regular(descriptor, path)
        return os.fdopen(descriptor, "wb", buffering=0 if append else _BUFFER)
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_all_but_regular(descriptor: int, path: str) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file", path)


def _create(path: str) -> int:
    """Open a file that is not there yet; what is, left by a dead process or laid by someone, is removed.

    Returns:
        Its descriptor.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW
    try:
        return os.open(path, flags, FILE_MODE)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, FILE_MODE)


def write_anew(path: str, parts: Sequence[Buffer]) -> bool:
    """Write a file of `parts`, one after the other; whether there was one of this name.

    That one is not emptied, for it may have other names, under which it lives on.

    Raises:
        OSError: `path` is a symbolic link, or not everything could be written. Then there is no file of this name.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW
    replaced = False
    try:
        descriptor = os.open(path, flags, FILE_MODE)
    except FileExistsError:
        if os.path.islink(path):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
        os.unlink(path)
        descriptor = os.open(path, flags, FILE_MODE)
        replaced = True
    try:
        try:
            _write_all(descriptor, parts)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return replaced


def _write_all(descriptor: int, parts: Sequence[Buffer]) -> None:
    """Linux takes no more than 2 GiB at a time, and a full disk what it has room for."""
    left = [memoryview(part) for part in parts]
    while left:
        written = os.writev(descriptor, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def folds_names(folder: str) -> bool:
    """True if the file system takes names that differ only in case for one; `folder` exists, its name has letters."""
    above, name = os.path.split(folder)
    try:
        return os.path.samefile(folder, os.path.join(above, name.swapcase()))
    except OSError:
        return False


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A stream whose content appears under `path` at once and whole, or not at all."""
    with _aside(path) as (stream, _):
        yield stream


def replace(path: str, content: bytes) -> None:
    """Write a small file as `replacing` does, in fewer calls of the system."""
    aside = _name_aside(path)
    try:
        descriptor = _create(aside)
        try:
            lock_descriptor(descriptor)
            _write_all(descriptor, (content,))
        finally:
            os.close(descriptor)
        os.replace(aside, path)
    except BaseException as error:
        _give_up(aside, path, error)
        raise


@contextlib.contextmanager
def replacing_by_name(path: str) -> Iterator[str]:
    """The name of an empty file whose content appears under `path` in the same way; for what opens files by itself."""
    with _aside(path) as (_, name):
        yield name


@contextlib.contextmanager
def _aside(path: str) -> Iterator[tuple[BinaryIO, str]]:
    aside = _name_aside(path)
    try:
        with os.fdopen(_create(aside), "wb", buffering=_BUFFER) as stream:
            # For `remove_left`, which may look from another machine.
            lock(stream)
            yield stream, aside
        os.replace(aside, path)
    except BaseException as error:
        _give_up(aside, path, error)
        raise


def _name_aside(path: str) -> str:
    """The name under which a file is written that is to appear as `path`."""
    folder, name = os.path.split(path)
    end = f".{os.getpid()}{_UNFINISHED}"
    if len(os.fsencode(name)) + len(end) > _LONGEST_NAME:
        name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
    return os.path.join(folder, name + end)


def _give_up(aside: str, path: str, error: BaseException) -> None:
    with contextlib.suppress(OSError):
        os.unlink(aside)
    if isinstance(error, OSError) and error.filename is None:
        # A write knows its file by a number.
        error.filename = path


def lock(stream: BinaryIO) -> bool:
    """Mark an open file as in use until it is closed or its process dies; false if another process has done so.

    Where the file system has no locks nobody is kept out.
    """
    return lock_descriptor(stream.fileno())


def lock_descriptor(descriptor: int) -> bool:
    """Mark an open file or folder in the same way."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def in_use(path: str) -> bool:
    """True if a process that runs has locked the regular file `path`."""
    try:
        with open_for_reading(path) as stream:
            return not lock(stream)
    except OSError:
        return False


def remove_left(folder: str, names: Sequence[str]) -> list[str]:
    """Remove what processes that died were writing under `names` in `folder` with `replacing`; the paths that are gone.

    A process lives if this machine has one of its number, or another machine a lock on the file.
    """
    removed: list[str] = []
    if fcntl is None:
        return removed  # nor can it be asked there whether a process lives
    for name in names:
        for path in glob.glob(os.path.join(glob.escape(folder), f"{glob.escape(name)}.*{_UNFINISHED}")):
            pid = path[: -len(_UNFINISHED)].rpartition(".")[2]
            # Not in_use of anything else: a pipe might never answer.
            if pid.isdecimal() and not _lives(int(pid)) and _is_regular(path) and not in_use(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    removed.append(path)
    return removed


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _lives(pid: int) -> bool:
    if pid == os.getpid():
        return False  # an earlier one of this number: what this one writes is locked
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's, or no number of a process
    return True


def remove_unfinished(folder: str, pid: int) -> None:
    """Remove what the process `pid`, which is dead, was writing to `folder` with `replacing`."""
    for path in glob.glob(os.path.join(glob.escape(folder), f"*.{pid}{_UNFINISHED}")):
        with contextlib.suppress(OSError):
            os.unlink(path)
