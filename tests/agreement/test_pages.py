"""The pages that need two frameworks run, each script with its framework's own interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
from agreement.interpreters import BACKENDS, interpreter
from documentation import pages


@pytest.mark.parametrize("page", pages.pages_of("agreement"), ids=pages.name)
def test_pages_run(page: Path, tmp_path: Path) -> None:
    pages.run_page(page, tmp_path, {name: interpreter(name) for name in BACKENDS})
