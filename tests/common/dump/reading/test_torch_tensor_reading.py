"""Values from files of PyTorch, read whole or left in the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from probe.common.dump.reading.tensor_reading import read_tensor
from probe.common.errors import FileCheckException

LARGE = torch.arange(1 << 19, dtype=torch.float32)


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
def test_large_files_have_the_same_values_mapped_or_not(tmp_path: Path, archive: bool, mapped: bool) -> None:
    path = tmp_path / "large.pt"
    torch.save(LARGE, path, _use_new_zipfile_serialization=archive)
    np.testing.assert_array_equal(read_tensor(str(path), mapped), LARGE.numpy())


@pytest.mark.parametrize("mapped", [True, False])
def test_types_that_numpy_lacks_are_widened(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "short.pt"
    torch.save(LARGE.bfloat16(), path)
    found = read_tensor(str(path), mapped)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, LARGE.bfloat16().float().numpy())


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_that_is_cut_off_is_an_error_that_names_it(tmp_path: Path, mapped: bool) -> None:
    torch.save(LARGE, tmp_path / "whole.pt")
    path = tmp_path / "cut.pt"
    path.write_bytes((tmp_path / "whole.pt").read_bytes()[: 3 << 19])
    with pytest.raises(FileCheckException, match=r"cut\.pt: not a tensor"):
        read_tensor(str(path), mapped)
