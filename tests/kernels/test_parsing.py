"""Tensors of ATB converted: files of the documented layout, and everything that is none."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from probe.common.errors import MsprobeException
from probe.kernels.parsing import ParsedFile, parse, read, write_npy

VALUES = np.array([[1.5, -2.0, 0.25], [3.0, 100.0, 0.0]])
# The numbers of Ascend's data types, and numpy's type of the same bits.
DTYPES = {
    0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 6: "int16", 7: "uint16", 8: "uint32", 9: "int64",
    10: "uint64", 11: "float64", 12: "bool", 16: "complex64", 17: "complex128",
}  # fmt: skip


def atb(dtype: int, dims: str, data: bytes, extent: str = "", lines: str = "format=2\n") -> bytes:
    """A file of the documented layout."""
    header = f"$Version=1.0\n$Object.Count=1\n$Object.Length={len(data)}\ndtype={dtype}\n{lines}dims={dims}\n"
    return f"{header}$Object.data={extent or f'0,{len(data)}'}\n$End=1\n".encode() + data


def parsed(folder: Path, content: bytes, name: str = "x.bin") -> ParsedFile:
    (folder / name).write_bytes(content)
    (found,) = parse(str(folder / name), str(folder / "out"), ".npy", write_npy)
    return found


@pytest.mark.parametrize("number", DTYPES)
def test_every_dtype(number: int, tmp_path: Path) -> None:
    values = np.abs(VALUES).astype(DTYPES[number])
    found = parsed(tmp_path, atb(number, "2,3", values.tobytes()))
    loaded = np.load(found.target, allow_pickle=False)
    assert (found.dtype, loaded.dtype, loaded.shape) == (DTYPES[number], values.dtype, (2, 3))
    assert np.array_equal(loaded, values)


def test_bfloat16_is_float32_in_npy(tmp_path: Path) -> None:
    # The upper halves of these float32 numbers, which have no digits below.
    upper = b"".join(struct.pack("<f", value)[2:] for value in VALUES.flat)
    found = parsed(tmp_path, atb(27, "2,3", upper))
    loaded = np.load(found.target, allow_pickle=False)
    assert found.dtype == "bfloat16"
    assert loaded.dtype == np.float32
    assert np.array_equal(loaded, VALUES)


def test_a_scalar_and_an_offset(tmp_path: Path) -> None:
    assert read(written(tmp_path, atb(3, "", struct.pack("<i", 7)))).values == 7
    assert read(written(tmp_path, atb(3, "1", b"gap!" + struct.pack("<i", 7), "4,4"))).values.tolist() == [7]


def written(folder: Path, content: bytes) -> str:
    (folder / "a.bin").write_bytes(content)
    return str(folder / "a.bin")


def test_a_tree_is_made_again(tmp_path: Path) -> None:
    for name in ("a.bin", "layer/0/b.bin", "layer/1/b.bin"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(atb(0, "2,3", VALUES.astype(np.float32).tobytes()))
    (tmp_path / "in" / "note.txt").write_text("not a tensor")
    found = list(parse(str(tmp_path / "in"), str(tmp_path / "out"), ".npy", write_npy))
    names = [os.path.relpath(each.target, tmp_path / "out") for each in found]
    assert names == ["a.npy", "layer/0/b.npy", "layer/1/b.npy"]
    assert oct((tmp_path / "out" / "a.npy").stat().st_mode & 0o777) == "0o640"


RIGHT = atb(0, "2,3", VALUES.astype(np.float32).tobytes())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (RIGHT[:-1], "cut off: it has 23 bytes of data, and the header says 24"),
        (RIGHT.replace(b"dims=2,3", b"dims=2,4"), r"the data has 24 bytes; float32 of shape \[2, 4\] has 32"),
        (RIGHT.replace(b"dims=2,3", b"dims=999999999,999999999999"), "has 3999999995996000000004"),
        (RIGHT.replace(b"dims=2,3", b"dims=2,-3"), 'dims is "2,-3"; expected: numbers'),
        (RIGHT.replace(b"dtype=0", b"dtype=99"), 'dtype is "99"; known: 0 \\(float32\\)'),
        (RIGHT.replace(b"dtype=0\n", b""), 'dtype is ""'),
        (RIGHT.replace(b"format=2", b"dtype=1"), '"dtype" twice'),
        (RIGHT.replace(b"format=2", b"format"), 'the line "format" of the header is not key=value'),
        (RIGHT.replace(b"0,24", b"24"), "expected: offset,length"),
        (RIGHT.replace(b"$End=1", b"$End=0"), r"no line \$End=1"),
        (b"\x93NUMPY" + bytes(100), "it is a .npy file already"),
        (b"PK\x03\x04" + bytes(100), "it is an archive"),
        (struct.pack("<Q", 40) + b"\x0a\x031.0" + bytes(100), "Ascend's protobuf format, which is not supported"),
        (b"", "it is no tensor of ATB"),
        (b"hello", "it is no tensor of ATB"),
    ],
)
def test_what_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    found = parsed(tmp_path, content)
    assert not found.target
    assert re.search(words, found.problem)
    assert found.problem.startswith(str(tmp_path / "x.bin")), "the file is named"


def test_a_folder_of_kernel_dumps_is_recognised(tmp_path: Path) -> None:
    name = "Add.Default_Add-op1.1.2.1700000000000"
    (tmp_path / name).write_bytes(struct.pack("<Q", 40) + b"\x0a\x031.0" + bytes(100))
    with pytest.raises(MsprobeException, match=f"{name}: it is a kernel dump in Ascend's protobuf format"):
        list(parse(str(tmp_path), str(tmp_path / "out"), ".npy", write_npy))


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "out" / "x.npy").symlink_to(tmp_path / "elsewhere")
    parsed(tmp_path, RIGHT)
    assert (tmp_path / "elsewhere").read_text() == "mine"
