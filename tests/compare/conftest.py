"""Kept dumps of real runs, unpacked where a test asks for them, and debuggers that record others."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

KEPT = Path(__file__).parent / "judged"


@pytest.fixture(scope="session")
def dumps_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with the dumps of a set, which is unpacked when it is first asked for."""

    @cache
    def unpacked(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        with tarfile.open(KEPT / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(folder)
        return folder

    return unpacked


@pytest.fixture
def new_debugger() -> Iterator[Callable[..., Any]]:
    """A debugger of PyTorch for each run, of which a process has one otherwise."""
    from msprobe.pytorch import PrecisionDebugger

    def made(*config: str, **settings: Any) -> Any:
        PrecisionDebugger._instance = None
        return PrecisionDebugger(*config, **({} if config else {"task": "statistics", **settings}))

    yield made
    PrecisionDebugger._instance = None
