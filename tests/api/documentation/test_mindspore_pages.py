"""The pages that need MindSpore run."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation import pages


@pytest.mark.sampled(least=1, each=False, group="long programs")
@pytest.mark.parametrize("page", pages.pages_of("mindspore"), ids=pages.name)
def test_pages_run(page: Path, tmp_path: Path) -> None:
    pages.run_page(page, tmp_path)
