"""Recorded comparisons of real data, whose files torch wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_cases import Run, check_apart_from_defects, columns, differences, execute, runs, table

RUNS = runs(real_data=True)


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_26_2_writes_every_cell_as_recorded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for made, expected in execute(run, tmp_path, monkeypatch, "--rules", "msprobe"):
        assert columns(made) == columns(expected)
        assert differences(table(made), table(expected)) == []


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_what_differs_from_the_record_is_a_defect_of_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for made, expected in execute(run, tmp_path, monkeypatch):
        if made.suffix == ".csv":
            check_apart_from_defects(run, made, expected)
