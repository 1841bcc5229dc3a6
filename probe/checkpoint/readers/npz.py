"""Archives of numpy: ``.npz``."""

from __future__ import annotations

import math
import zipfile

import numpy as np

from probe.checkpoint.content import Checkpoint
from probe.checkpoint.stored.files import File
from probe.checkpoint.stored.tensors import Array, Stored, Tensor
from probe.common import files
from probe.common.dump.reading.pt_validation import extent
from probe.common.errors import DumpFormatError
from probe.common.numerics.decoding import word_type


class _Packed(Tensor):
    """An array that is compressed, read as a whole while it is compared."""

    def __init__(self, path: str, entry: str, dtype: str, shape: tuple[int, ...]) -> None:
        super().__init__(dtype, shape)
        self._path, self._entry = path, entry
        self._held: Array | None = None

    def rows(self, start: int, stop: int) -> Array:
        if self._held is None:
            reading = files.open_for_reading(self._path)
            with reading, zipfile.ZipFile(reading) as archive, archive.open(self._entry) as stream:
                self._held = np.lib.format.read_array(stream, allow_pickle=False)
        return self._held.reshape(self.row_count, *self.row_shape)[start:stop]

    def release(self) -> None:
        self._held = None


def read_npz(path: str, into: Checkpoint) -> None:
    """Add the arrays of a file.

    Raises:
        FileCheckException, DumpFormatError: it cannot be read, or holds something else than numbers.
    """
    file = File(path)
    try:
        with files.open_for_reading(path) as stream, zipfile.ZipFile(stream) as archive:
            for entry in archive.infolist():
                name = entry.filename[:-4] if entry.filename.endswith(".npy") else entry.filename
                if name in into.weights:
                    raise DumpFormatError(f"{path}: {name} is in it twice, and only one can be meant: save it again.")
                with archive.open(entry) as member:
                    version = np.lib.format.read_magic(member)
                    reads = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape, is_fortran, dtype = reads(member)
                    header = member.tell()
                if dtype.hasobject or word_type(dtype.newbyteorder("=").name) is None:
                    raise DumpFormatError(f"{path}: {name} has dtype {dtype}; only numbers are read: save it as such.")
                kind = dtype.newbyteorder("=").name
                if entry.compress_type != zipfile.ZIP_STORED:
                    if math.prod(shape) * dtype.itemsize + header != entry.file_size:
                        raise DumpFormatError(f"{path}: {name} has another size than its shape: copy the file again.")
                    into.weights[name] = _Packed(path, entry.filename, kind, shape)
                    continue
                begin, _ = extent(stream, entry)
                strides = tuple(math.prod(shape[:index]) for index in range(len(shape))) if is_fortran else None
                into.weights[name] = Stored(file, begin + header, kind, shape, strides, dtype.byteorder == ">")
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        if isinstance(error, DumpFormatError):
            raise
        raise DumpFormatError(f"{path}: not an archive of numpy: {error}; copy or save it again.") from None
