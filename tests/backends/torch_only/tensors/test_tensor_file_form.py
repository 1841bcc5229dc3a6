"""``.pt`` files of ours against those of torch.save: the same tensor comes back, in any reader."""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
import weakref
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probe.backends import loader
from probe.backends.torch.tensors.pt_file import archive
from probe.common.dump.reading.tensor_reading import read_tensor
from probe.common.interfaces import TensorFile

# Quantised tensors are saved as what they stand for, and of integers of some bits there are no tensors.
_NO_TENSORS = re.compile(r"torch\.(q.*|u?int[1-7])")
_NAMED = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
DTYPES = sorted((dtype for dtype in _NAMED if not _NO_TENSORS.fullmatch(str(dtype))), key=str)
SHAPES = [(), (1,), (3,), (2, 1, 5), (64, 33)]
tensors = loader.load("torch").tensors


def example(dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    """A tensor of random bits; bool has but two values."""
    count = int(np.prod(shape))
    random = np.random.default_rng(count)
    if dtype is torch.bool:
        return torch.from_numpy(random.integers(0, 2, shape, dtype=np.uint8)).to(dtype)
    try:
        size = torch.empty((), dtype=dtype).element_size()
        return torch.from_numpy(random.integers(0, 256, count * size, dtype=np.uint8)).view(dtype).reshape(shape)
    except (RuntimeError, TypeError) as error:
        pytest.skip(f"torch itself has no such tensor: {error}")


def written(path: Path, file: TensorFile) -> Path:
    path.write_bytes(file.head + bytes(file.data) + file.tail)
    return path


def saved_by_torch(tensor: Any) -> io.BytesIO:
    stream = io.BytesIO()
    try:
        torch.save(tensor, stream)
    except (KeyError, RuntimeError, AttributeError) as error:
        pytest.skip(f"torch.save cannot: {error}")
    stream.seek(0)
    return stream


def bits(tensor: Any) -> bytes:
    return bytes(tensor.untyped_storage().tolist())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_comes_back_as_from_torch_save(tmp_path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that torch is about to drop
        tensor = example(dtype, shape)
        expected = torch.load(saved_by_torch(tensor), weights_only=True)
        path = written(tmp_path / "t.pt", tensors.tensor_file(tensor, False))
        for mapped in (False, True):
            found = torch.load(path, weights_only=True, mmap=mapped)
            assert type(found) is torch.Tensor and found.dtype is expected.dtype and not found.requires_grad
            assert found.shape == expected.shape and found.stride() == expected.stride()
            assert bits(found) == bits(expected) == bits(tensor)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_the_archive_is_sound_and_says_what_torch_save_says(tmp_path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    tensor = example(dtype, shape)
    file = tensors.tensor_file(tensor, False)
    path = written(tmp_path / "t.pt", file)
    with zipfile.ZipFile(path) as ours, zipfile.ZipFile(saved_by_torch(tensor)) as theirs:
        assert ours.testzip() is None
        assert set(ours.namelist()) <= set(theirs.namelist())
        for name in ours.namelist():
            assert ours.read(name) == theirs.read(name), name
        entry = ours.getinfo("archive/data/0")
    assert entry.CRC == file.crc == zlib.crc32(bits(tensor))
    with open(path, "rb") as stream:
        stream.seek(entry.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", stream.read(4))
    assert (entry.header_offset + 30 + name_length + extra_length) % 64 == 0


def test_a_contiguous_tensor_is_not_copied_unless_asked() -> None:
    tensor = torch.zeros(5, requires_grad=True)
    own, copy = tensors.tensor_file(tensor, False), tensors.tensor_file(tensor, True)
    with torch.no_grad():
        tensor.add_(1)
    ones = torch.ones(5).numpy().tobytes()
    assert bytes(own.data) == ones and bytes(copy.data) == bytes(20)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0).reshape(3, 4)[:, 1:3],
        torch.arange(3.0).expand(4, 3),
        torch.arange(6.0)[::2],
        torch.tensor([1 + 2j, 3j]).conj(),
        torch.tensor([1 + 2j, 3j]).conj().imag,
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["transposed", "window", "expanded", "stepped", "conjugated", "negated", "parameter"],
)
def test_views_are_files_of_their_values(tmp_path: Path, tensor: Any) -> None:
    path = written(tmp_path / "t.pt", tensors.tensor_file(tensor, False))
    found = torch.load(path, weights_only=True)
    assert torch.equal(found, tensor.detach()) and found.is_contiguous() and type(found) is torch.Tensor
    assert found.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("tensor", [torch.arange(12).reshape(3, 4).t(), torch.tensor(7)], ids=["transposed", "scalar"])
@pytest.mark.parametrize("dtype", ["float32", "uint16", "uint32", "uint64"])
def test_compare_reads_it_also_unsigned_integers_although_torch_save_may_refuse_them(
    tmp_path: Path, dtype: str, tensor: Any
) -> None:
    file = tensors.tensor_file(tensor.to(getattr(torch, dtype)), False)
    found = read_tensor(str(written(tmp_path / f"t{file.suffix}", file)))
    assert found.dtype == dtype
    assert np.array_equal(found, tensor.numpy())


@pytest.mark.parametrize("elements", [(1 << 32) - 1, 1 << 32, (1 << 32) + 7])
def test_files_beyond_4_gib_are_read(tmp_path: Path, elements: int) -> None:
    # A file with a hole; its CRC-32 is made up, as that of so many zeros takes seconds.
    head, tail = archive(torch.uint8, (elements,)).around(0x12345678)
    path = tmp_path / "t.pt"
    with open(path, "wb") as stream:
        stream.write(head)
        stream.seek(elements - 4, os.SEEK_CUR)
        stream.write(b"\1\2\3\4" + tail)
    found = torch.load(path, weights_only=True, mmap=True)
    assert found.shape == (elements,) and found[-5:].tolist() == [0, 1, 2, 3, 4] and found[0] == 0
    with zipfile.ZipFile(path) as file:
        entry = file.getinfo("archive/data/0")
        assert (entry.file_size, entry.CRC) == (elements, 0x12345678)
        assert file.read("archive/version") == b"3\n"


def test_the_bytes_of_a_tensor_outlive_it() -> None:
    tensor = torch.arange(1000)
    alive = weakref.ref(tensor)
    file = tensors.tensor_file(tensor, False)
    del tensor
    assert alive() is not None
    assert bytes(file.data) == np.arange(1000).tobytes() and file.data.readonly
    del file
    assert alive() is None
