"""The examples in docstrings print what they say, of modules that need no framework."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import probe

ROOT = Path(probe.__file__).parent
# Examples of `api` are programs of users, with models and dumps of their own.
MODULES = [
    ".".join(("probe", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if path.relative_to(ROOT).parts[0] not in ("api", "backends") and ">>> " in path.read_text(encoding="utf-8")
]


def test_examples_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {name: doctest.testmod(importlib.import_module(name)) for name in MODULES}
    assert [name for name, result in found.items() if result.failed] == []
    assert sum(result.attempted for result in found.values()) >= len(MODULES) > 10
    assert list(tmp_path.iterdir()) == []
