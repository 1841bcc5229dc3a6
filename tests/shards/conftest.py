"""The runs that the tests here read; nobody changes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from split_runs import CASES, train


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of all runs, which train at the same time."""
    folder = tmp_path_factory.mktemp("split")
    train(folder, CASES)
    return folder
