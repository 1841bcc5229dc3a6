"""Arrays as ``.npy`` files, from their own memory: what ``numpy.save`` writes, without its copy in between."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np

from probe.backends.shared import checksums
from probe.common.interfaces import TensorFile


def npy_file(array: np.ndarray[Any, Any]) -> TensorFile:
    """The file of a C-contiguous array of numbers or texts; it shares the memory of `array`.

    Raises:
        ValueError: an array of Python objects.
    """
    if array.dtype.hasobject:
        raise ValueError("an array of objects can only be saved as a pickle, and reading one runs what it says.")
    data = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
    return TensorFile(".npy", _head(array.dtype, array.shape), data, b"", checksums.crc32_of(data))


@functools.lru_cache(maxsize=1024)
def _head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()
