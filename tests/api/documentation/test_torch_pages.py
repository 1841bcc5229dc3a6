"""The pages that need PyTorch run."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation import pages


@pytest.mark.sampled(least=1, each=False, group="pages")
@pytest.mark.parametrize("page", pages.pages_of("torch"), ids=pages.name)
def test_pages_run(page: Path, tmp_path: Path) -> None:
    pages.run_page(page, tmp_path)
