"""Recorded comparisons of statistics and checksums, none of which needs a framework."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compare_cases import (
    Run,
    check_apart_from_defects,
    columns,
    differences,
    execute,
    runs,
    same,
    table,
)

from probe.common.align.mapping_files import load_names

TABLES = [run for run in runs(real_data=False) if "-da" not in run.arguments]
ANALYSES = [run for run in runs(real_data=False) if "-da" in run.arguments]


@pytest.mark.parametrize("run", TABLES, ids=str)
def test_26_2_writes_every_cell_as_recorded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for made, expected in execute(run, tmp_path, monkeypatch, "--rules", "msprobe"):
        if made.suffix == ".yaml":
            assert load_names(str(made)) == load_names(str(expected))
            assert list(load_names(str(made))) == list(load_names(str(expected)))
            continue
        assert columns(made) == columns(expected)
        assert differences(table(made), table(expected)) == []


@pytest.mark.parametrize("run", TABLES, ids=str)
def test_what_differs_from_the_record_is_a_defect_of_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for made, expected in execute(run, tmp_path, monkeypatch):
        if made.suffix == ".csv":
            check_apart_from_defects(run, made, expected)


@pytest.mark.parametrize("run", ANALYSES, ids=str)
def test_first_differences_are_as_recorded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for made, expected in execute(run, tmp_path, monkeypatch):
        assert alike(json.loads(made.read_text()), json.loads(expected.read_text()))


def alike(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(alike(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    return type(ours) is type(theirs) and same(ours, theirs)
