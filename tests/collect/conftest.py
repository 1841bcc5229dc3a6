"""Ends what the tests of the collector leave open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from collector_runs import Run

from probe.common import log


@pytest.fixture
def ended_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test has left open."""
    monkeypatch.setattr(log, "_given", set())
    yield
    for run in Run.begun:
        run.folder.journal.close()
    Run.begun.clear()
