"""Whatever a `.pt` file holds: no code runs, and no more memory is taken than the file justifies."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile.damage import CHANGES, answered, changed
from hostile.pt_files import GOOD, PT
from hostile.reading import assert_refused, read_in_child, write
from hypothesis import given
from hypothesis import strategies as st

from probe.common.dump.reading.tensor_reading import read_tensor


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


MIB = 600
"""Address space beyond the imports. torch itself takes some for its threads; the files ask for far more."""


def test_a_hostile_tensor_file_is_refused(tmp_path: Path) -> None:
    assert_refused(read_in_child("tensor", write(tmp_path / "t", PT, ".pt"), MIB))


def test_the_same_files_are_refused_where_they_would_be_mapped(tmp_path: Path) -> None:
    paths = write(tmp_path / "t", PT, ".pt")
    chosen = [path for path in paths if Path(path).stem in ("executes", "compressed", "asks_for_bytes")]
    for path in chosen:
        # Something in front of an archive makes it large enough.
        with open(path, "rb") as stream:
            content = stream.read()
        Path(path).write_bytes(content + bytes(2 << 20))
    assert_refused(read_in_child("mapped", chosen, MIB))


TYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
    torch.uint32,
]  # fmt: skip
OLD_TYPES = TYPES[:11]


def _old() -> bytes:
    stream = io.BytesIO()
    torch.save(torch.arange(6.0), stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


OLD = _old()
"""A file as PyTorch wrote it before 1.6."""


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_what_torch_saves_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(6).reshape(2, 3).to(dtype)
    for legacy in (False, True) if dtype in OLD_TYPES else (False,):
        torch.save(values, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
        np.testing.assert_array_equal(read_tensor(str(tmp_path / "a.pt")).real.astype(int), [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    "value",
    [
        torch.nn.Parameter(torch.ones(3)), torch.ones(4, 6).t(), torch.ones(1).expand(100, 50), torch.ones(0, 3),
        torch.ones(2, 3)[:, 1], torch.ones(3, requires_grad=True), torch.ones(2, dtype=torch.complex64).conj(),
    ],
    ids=["parameter", "transposed", "expanded", "empty", "view", "requires_grad", "conjugated"],
)  # fmt: skip
def test_tensors_of_any_layout_are_read(tmp_path: Path, value: torch.Tensor) -> None:
    stream = io.BytesIO()
    torch.save(value, stream)
    (path,) = write(tmp_path / "t", {"a": stream.getvalue()}, ".pt")
    np.testing.assert_array_equal(read_tensor(path), value.detach().resolve_conj().numpy())


@given(st.sampled_from([GOOD, OLD]), CHANGES)
def test_a_damaged_pt_file(content: bytes, changes: list[tuple[int, bytes, int]]) -> None:
    content = changed(content, changes)
    values = answered("tensor.pt", content, read_tensor)
    assert values is None or values.nbytes <= max(256 << 20, len(content))
