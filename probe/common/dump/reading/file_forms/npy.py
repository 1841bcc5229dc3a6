"""The array in a ``.npy`` file. What its header says is held against the file before anything is made of it."""

from __future__ import annotations

import math
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from probe.common import files

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
