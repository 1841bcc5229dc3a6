"""md5 (a CRC-32 of the bytes) against zlib, and xor against Python integers."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from described import describe

LENGTHS = [1, 2, 3, 7, 8, 9, 64, 65]
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"]


def example(dtype: str, length: int) -> Any:
    return (np.random.default_rng(length).integers(0, 2 if dtype == "bool" else 100, size=length)).astype(dtype)


def words(data: bytes) -> str:
    """Exclusive or of the 8-byte little-endian words of `data`, padded with zeros."""
    data += bytes(-len(data) % 8)
    value = 0
    for at in range(0, len(data), 8):
        value ^= int.from_bytes(data[at : at + 8], "little")
    return f"0x{value:016x}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_checksums_are_those_of_the_bytes(backend: Any, dtype: str) -> None:
    for length in LENGTHS:
        values = example(dtype, length)
        entry = describe(backend, backend.tensor(values), mode="md5")
        assert entry["md5"] == f"{zlib.crc32(values.tobytes()):08x}", length
        assert entry["Max"] is not None, "the statistics stay"
        assert list(entry) == ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad", "md5"]
        entry = describe(backend, backend.tensor(values), mode="xor")
        assert entry["md5"] == words(values.tobytes()), length
        assert list(entry) == ["type", "dtype", "shape", "md5", "requires_grad"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_without_a_numpy_form_have_the_checksums_of_what_a_file_holds(backend: Any, dtype: str) -> None:
    if dtype.startswith("float8") and dtype not in backend.small_floats:
        pytest.skip(f"{backend.name} has no {dtype}")
    tensor = backend.tensor(np.linspace(-3, 3, 13), dtype)
    data = backend.stored_bytes(tensor)
    assert describe(backend, tensor, mode="md5")["md5"] == f"{zlib.crc32(data):08x}"
    assert describe(backend, tensor, mode="xor")["md5"] == words(data)


def test_tensors_of_any_shape_layout_and_content_have_the_checksums_of_their_bytes_in_row_major_order(
    backend: Any,
) -> None:
    rows = np.arange(6, dtype=np.int32).reshape(2, 3)
    number, none = np.array(2.0, np.float32), np.zeros((0, 3), np.float32)
    for values, tensor in (
        (number, backend.tensor(number)),
        (none, backend.tensor(none)),
        (rows.T, backend.transposed(backend.tensor(rows))),
        (np.array([np.nan, 1.0], np.float32), backend.tensor(np.array([np.nan, 1.0], np.float32))),
    ):
        assert describe(backend, tensor, mode="md5")["md5"] == f"{zlib.crc32(values.tobytes()):08x}"
        assert describe(backend, tensor, mode="xor")["md5"] == words(values.tobytes())


@pytest.mark.parametrize("mode", ["md5", "xor"])
def test_summary_mode_reaches_the_records(runs: Any, backend: Any, mode: str) -> None:
    debugger = runs.new(summary_mode=mode)
    values = np.array([[1.0, -2.0]], dtype=np.float32)
    debugger.start()
    backend.apis["abs"].call(backend.tensor(values))
    debugger.stop()
    (entry,) = runs.read().data[f"{backend.apis['abs'].base}.0.forward"]["output"]
    data = np.abs(values).tobytes()
    assert entry["md5"] == (f"{zlib.crc32(data):08x}" if mode == "md5" else words(data))
    assert ("Max" in entry) is (mode == "md5")
