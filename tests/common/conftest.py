"""Lets the tests of this folder import what they share, and gives them an empty folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from probe.common import log

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log, "_given", set())
    monkeypatch.delenv("MSPROBE_LOG_LEVEL", raising=False)
