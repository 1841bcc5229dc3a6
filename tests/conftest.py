"""The option that chooses a backend; what it does in the contract suite stands in ``backends/conftest.py``."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

BACKENDS = sorted(path.stem[len("backend_") :] for path in Path(__file__).parent.glob("backends/support/backend_*.py"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        metavar="NAME",
        help=f"backend that the tests run over ({', '.join(BACKENDS)}); PROBE_TEST_BACKEND where the option is absent",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what needs the framework of another backend: ``test_<name>_*.py`` and the folders ``<name>_only``."""
    chosen = config.getoption("--backend") or os.environ.get("PROBE_TEST_BACKEND")
    folder = re.fullmatch("(.+)_only", collection_path.name)
    file = re.fullmatch(r"test_([a-z]+)_.*\.py", collection_path.name)
    if folder and folder[1] in BACKENDS:
        return True if folder[1] != chosen else None
    return True if file and chosen and file[1] in BACKENDS and file[1] != chosen else None
