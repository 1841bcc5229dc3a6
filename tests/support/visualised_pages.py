"""Pages that the command writes of recorded dumps, for the tests in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.api.cli import main

DUMPS = Path(__file__).parents[1] / "graph" / "cases" / "dumps"
FAULT = "Functional.linear.12.forward"
"""The first divergence of `llama_weight` beside `llama`."""


def visualised(folder: Path, *arguments: object) -> Path:
    """The page that the command writes to a folder."""
    assert main(["graph_visualize", *map(str, arguments), "-o", str(folder)]) == 0
    [page] = folder.glob("*.html")
    return page


def selected(page: Any) -> str:
    """The name of the row that is chosen on a page."""
    return str(page.evaluate("state.rows.name(state.selected)"))
