"""Our ``.npy`` files are numpy's, byte for byte."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest

from probe.backends.shared.npy_file import npy_file
from probe.common.interfaces import TensorFile

DTYPES = ["?", "i1", "u1", "<i2", ">i2", "<u4", "<i8", "<f2", "<f4", ">f8", "<c8", "<c16", "<U3", "S5"]


def content(file: TensorFile) -> bytes:
    return file.head + bytes(file.data) + file.tail


@pytest.mark.parametrize("shape", [(), (1,), (5,), (0, 3), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_file_is_what_numpy_writes(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    expected = io.BytesIO()
    np.save(expected, array, allow_pickle=False)
    file = npy_file(array)
    assert content(file) == expected.getvalue() and file.size == len(expected.getvalue())
    assert file.crc == zlib.crc32(array.tobytes()) and file.suffix == ".npy"


def test_the_elements_are_not_copied() -> None:
    array = np.zeros((3, 4), np.float32)
    file = npy_file(array)
    array[2, 3] = 1
    assert bytes(file.data) == array.tobytes()


def test_arrays_of_objects_are_refused() -> None:
    objects: Any = np.array([{}, []], dtype=object)
    with pytest.raises(ValueError, match="pickle"):
        npy_file(objects)
