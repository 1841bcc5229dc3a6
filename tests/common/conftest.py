"""An empty folder as the current one."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.common import log


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log, "_given", set())
    monkeypatch.delenv("MSPROBE_LOG_LEVEL", raising=False)
