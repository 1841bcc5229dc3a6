"""Our MindSpore dumps against those the real tool wrote; see README.md in this folder."""

from __future__ import annotations

import pytest
import reference_cases

NAMES = reference_cases.names("mindspore")


@pytest.mark.parametrize("name", NAMES)
def test_dump_is_what_the_reference_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference_cases.check("mindspore", name, monkeypatch)


def test_there_are_cases() -> None:
    assert len(NAMES) > 20
