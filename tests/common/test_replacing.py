"""Files that appear whole, whatever their names are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probe.common import files


@pytest.mark.parametrize("name", ["a", "a" * 240, "a" * 255, "ü" * 127])
def test_a_name_as_long_as_a_file_system_takes_is_written(tmp_path: Path, name: str) -> None:
    with files.replacing(str(tmp_path / name)) as stream:
        stream.write(b"content")
        (aside,) = os.listdir(tmp_path)
        assert aside != name and len(os.fsencode(aside)) <= 255
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_bytes() == b"content"
