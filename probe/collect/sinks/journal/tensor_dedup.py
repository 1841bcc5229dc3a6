"""The folder of a step's tensor files, in which equal files are one file under several names.

A step holds most tensors more than once: the output of a call is the input of the next, and both belong to the modules
around them. A second name costs 7 us instead of 65 (100 KB on ext4), and no space on the disk.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Callable, NamedTuple

from probe.collect.sinks.journal.tensor_budget import TensorBudget
from probe.common import files
from probe.common.interfaces import TensorFile

digest_of: Callable[[Any], bytes] | None = None
"""128 bits that stand for a content, where that is cheaper than to compare it with what is on the disk."""

try:
    # 45 GB/s (100 KB in the cache, AMD EPYC); hashlib's fastest reads 2, which is slower than to write the file.
    import xxhash
except ImportError:
    pass
else:
    digest_of = xxhash.xxh3_128_digest

_MOST_KNOWN = 1 << 16
"""Files that are kept in mind: 20 to 40 MB."""
_CHUNK = 1 << 16
"""Bytes, so that what is read is compared while it is in the processor's cache."""
# Here, or for this user, files have one name each.
_NO_LINKS = frozenset((errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV))


class _WrittenFile(NamedTuple):
    """A file that was written."""

    name: str
    digest: bytes | None
    state: tuple[int, int, int]
    """The state at that time; that of a tensor written to since is another."""


class DedupWriter:
    """Writes files which are equal to one before as another name of that one.

    It looks at what a file holds and not at which tensor that was: two tensors that share memory, and one that was
    written to between two calls, make no difference.

    Args:
        budget: What all files may take; a further name takes nothing.
    """

    def __init__(self, budget: TensorBudget) -> None:
        self._budget = budget
        self._known: dict[tuple[bytes, int, int], _WrittenFile] = {}
        self._can_link = True

    def write(self, folder: str, name: str, file: TensorFile) -> bool:
        """Bring `file` under `name`; what had this name before is another file and is left alone.

        Returns:
            Whether that was done: not where it would take more than is left.

        Raises:
            OSError: among others when `name` is a symbolic link. Nothing is left under the name then.
        """
        path = os.path.join(folder, name)
        if not self._can_link:
            return self._write_anew(path, name, file) is not None
        key = (file.head, file.crc, file.data.nbytes)
        digest = digest_of(file.data) if digest_of is not None else None
        known = self._known.get(key)
        if known is not None and self._linked(os.path.join(folder, known.name), path, known, digest, file):
            return True
        replaced = self._write_anew(path, name, file)
        if replaced is None:
            return False
        if replaced:
            # A name has another content than it had.
            self._known.clear()
        if len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = _WrittenFile(name, digest, _state(path))
        return True

    def _write_anew(self, path: str, name: str, file: TensorFile) -> bool | None:
        """True if there was a file of this name; ``None`` where none was written, for it would take too much."""
        if not self._budget.allows(file.size):
            return None
        replaced = files.write_anew(path, (file.head, file.data, file.tail))
        self._budget.add(name, file.size)
        return replaced

    def _linked(self, source: str, path: str, known: _WrittenFile, digest: bytes | None, file: TensorFile) -> bool:
        """True if `path` is a further name of `source` now."""
        if digest != known.digest:
            return False
        try:
            if _state(source) != known.state or (digest is None and not _holds(source, file)):
                return False
            os.link(source, path, follow_symlinks=False)
        except OSError as error:
            # The name is taken, the file is gone, or it has as many names as it can have: not worth a word.
            if error.errno in _NO_LINKS:
                self._can_link = False
                self._known.clear()
            return False
        return True


def _state(path: str) -> tuple[int, int, int]:
    # After it was closed: a server's clock has the last word then.
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _holds(path: str, file: TensorFile) -> bool:
    """True if the elements in the file are those of `file`, byte by byte."""
    descriptor = os.open(path, os.O_RDONLY | files.NO_FOLLOW)
    try:
        os.lseek(descriptor, len(file.head), os.SEEK_SET)
        chunk = bytearray(min(_CHUNK, file.data.nbytes))
        for at in range(0, file.data.nbytes, _CHUNK):
            part = file.data[at : at + _CHUNK]
            # A bytearray is compared as fast as memory is read, a memoryview byte by byte.
            buffer = chunk if part.nbytes == len(chunk) else bytearray(part.nbytes)
            if os.readv(descriptor, [buffer]) != part.nbytes or buffer != part:
                return False
        return True
    finally:
        os.close(descriptor)
