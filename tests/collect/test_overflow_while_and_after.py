"""While a training runs, and afterwards in its dump, the same record has the first value that is not finite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_dumps import write
from while_running import assert_same_while_and_after

CASES = Path(__file__).parents[1] / "overflow" / "cases"
RANKS = sorted(CASES.glob("*/step*/rank*"))
EDGES = json.loads((CASES / "edge" / "cases.json").read_text("utf-8"))


@pytest.mark.parametrize("rank", RANKS, ids=lambda path: str(path.relative_to(CASES)))
def test_each_rank_of_the_recorded_cases(rank: Path) -> None:
    assert_same_while_and_after(rank)


@pytest.mark.parametrize("edge", EDGES)
def test_records_on_the_edge(edge: str, tmp_path: Path) -> None:
    assert_same_while_and_after(write(tmp_path, EDGES[edge]["data"]))
