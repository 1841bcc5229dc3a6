"""Our MSAdapter dumps against those the real tool wrote; see README.md in this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import reference_cases

NAMES = reference_cases.names("msadapter")


@pytest.mark.parametrize("name", NAMES)
def test_dump_is_what_the_reference_holds(name: str, tmp_path: Path) -> None:
    reference_cases.check("msadapter", name, tmp_path)


def test_there_are_cases() -> None:
    assert len(NAMES) > 8
