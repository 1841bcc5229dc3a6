"""The files of a checkpoint, read in places and never mapped.

A mapped file that another process shortens meanwhile ends this one with a signal, and all of it that was looked at
counts as memory of this process. `pread` copies as fast from the page cache, and a block of it is all that is held.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import BinaryIO

import numpy as np

from probe.common import files
from probe.common.errors import DumpFormatError, FileCheckException

_MOST_OPEN = 128
"""Files that are open at once; a process may have 1024 by default on Linux."""


class _Open:
    """Files that were opened, the longest unused of which is closed first."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, BinaryIO] = OrderedDict()

    def descriptor(self, path: str) -> int:
        stream = self._streams.get(path)
        if stream is None:
            while len(self._streams) >= _MOST_OPEN:
                self._streams.popitem(last=False)[1].close()
            stream = self._streams[path] = files.open_for_reading(path, 0)
        self._streams.move_to_end(path)
        return stream.fileno()

    def close(self) -> None:
        while self._streams:
            self._streams.popitem()[1].close()


_open = _Open()


def close_all() -> None:
    """Close what was opened."""
    _open.close()


class File:
    """A file of a known size.

    Raises:
        FileCheckException: it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.size = os.fstat(_open.descriptor(path)).st_size
        except OSError as error:
            raise FileCheckException(f"{path}: cannot be read: {error.strerror or error}.") from None

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from `offset` on.

        Raises:
            DumpFormatError: the file ends before them.
        """
        buffer = np.empty(size, np.uint8)
        self.read_into(offset, buffer.data)
        return buffer.tobytes()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `offset` on.

        Raises:
            DumpFormatError: the file ends before them.
            FileCheckException: it cannot be read.
        """
        done = 0
        try:
            descriptor = _open.descriptor(self.path)
            while done < len(buffer):
                count = os.preadv(descriptor, [buffer[done:]], offset + done)
                if count == 0:
                    raise DumpFormatError(
                        f"{self.path}: it ends at byte {offset + done}, and {len(buffer) - done} more are needed; "
                        "copy the file again."
                    )
                done += count
        except OSError as error:
            raise FileCheckException(f"{self.path}: cannot be read: {error.strerror or error}.") from None
