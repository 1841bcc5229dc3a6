"""Values from files of PyTorch, read whole or left in the file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from probe.common.dump.reading.tensor_reading import read_tensor
from probe.common.errors import FileCheckException

TYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("torch was asked")

    monkeypatch.setattr(torch, "load", refused)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2)], ids=str)
def test_a_second_file_of_a_form_is_read_as_the_first(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ((torch.randn(shape, dtype=torch.float64) * 9).to(dtype) for _ in range(2))
    if dtype.is_floating_point and shape == (3, 5):
        second[0, :3] = torch.tensor([float("nan"), -float("inf"), -0.0])
    torch.save(first, tmp_path / "first.pt")
    torch.save(second, tmp_path / "second.pt")
    read_tensor(str(tmp_path / "first.pt"))
    without_torch(monkeypatch)
    found = read_tensor(str(tmp_path / "second.pt"))
    expected = second.float().numpy() if dtype == torch.bfloat16 else second.numpy()
    assert found.dtype == expected.dtype
    assert found.shape == shape
    assert found.tobytes() == expected.tobytes()
    found += found  # It is the caller's own.


def test_a_file_of_a_known_form_with_fewer_elements_is_refused(tmp_path: Path) -> None:
    torch.save(torch.arange(6.0), tmp_path / "whole.pt")
    read_tensor(str(tmp_path / "whole.pt"))
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "cut.pt", "w") as cut:
        for entry in whole.infolist():
            content = whole.read(entry)
            cut.writestr(entry.filename, content[:-4] if entry.filename.endswith("/data/0") else content)
    with pytest.raises(FileCheckException, match=r"cut\.pt: not a tensor"):
        read_tensor(str(tmp_path / "cut.pt"))


def test_the_advice_of_torch_to_run_what_a_file_says_is_not_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "object.pt"
    # One of before PyTorch 1.6, which torch alone reads.
    torch.save({"model": torch.nn.Linear(2, 2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(FileCheckException, match="objects that are no tensors, which are not loaded") as raised:
        read_tensor(str(path))
    assert "weights_only" not in str(raised.value)
