"""Our ``.npy`` files are numpy's, byte for byte, and CRC-32 is one function, whichever library computes it."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest

from probe.backends.shared import tensors
from probe.backends.shared.tensors import npy_file
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


def test_arrays_of_objects_are_refused() -> None:
    objects: Any = np.array([{}, []], dtype=object)
    with pytest.raises(ValueError, match="pickle"):
        npy_file(objects)


# The check value of CRC-32/ISO-HDLC, and of RFC 3720's neighbours: published, not computed here.
KNOWN = {b"": 0, b"123456789": 0xCBF43926, b"a": 0xE8B7BE43, b"\0" * 32: 0x190A55AD, b"\xff" * 32: 0xFF6CAB0B}


@pytest.mark.parametrize("library", ["zlib", "isal.isal_zlib"])
def test_checksums_are_those_of_zlib_without_the_extra_fast_and_with_it(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crc32 = pytest.importorskip(library).crc32
    monkeypatch.setattr(tensors, "crc32_of", crc32)
    for known, value in KNOWN.items():
        assert tensors.crc32(np.frombuffer(known, np.uint8)) == f"{value:08x}"
    data = np.random.default_rng(3).integers(0, 256, 5000, dtype=np.uint8)
    for start in range(17):
        for length in (1, 2, 15, 16, 17, 63, 64, 255, 1024, 4097):
            part = data[start : start + length]
            assert crc32(part.data) == zlib.crc32(part.tobytes())
