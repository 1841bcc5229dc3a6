"""The recipes for Transformers, Lightning and accelerate run."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation import pages


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("page", pages.pages_of("integrations"), ids=pages.name)
def test_pages_run(page: Path, tmp_path: Path) -> None:
    pages.run_page(page, tmp_path)
