"""Each test of a monitor runs in a folder of its own, by our rules, and as a process that has said nothing yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.common import log


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("MSPROBE_RULES", "MONITOR_OUTPUT_DIR"):
        monkeypatch.delenv(name, raising=False)
    # A process says each warning once.
    monkeypatch.setattr(log, "_given", set())
    return tmp_path
