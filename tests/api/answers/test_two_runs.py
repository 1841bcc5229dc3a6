"""The newest runs below a folder, and the comparison of them by ``msprobe compare --last``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import runs

from probe.api import cli
from probe.api.commands.comparing.two_runs import newest_runs
from probe.common.errors import FileCheckException

PLACES = ("old/step0/rank0", "deep/er/new/step0/rank0", "middle/graph/step0/rank0")
TIMES = (1_000, 3_000, 2_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place, time in zip(PLACES, TIMES):
        runs.write(tmp_path / place, [np.full(4, time, np.float32)])
        os.utime(tmp_path / place / "dump.json", (time, time))
    (tmp_path / "empty" / "step0").mkdir(parents=True)
    return tmp_path


def test_runs_are_in_the_order_of_their_last_write(folder: Path) -> None:
    found = newest_runs(str(folder), 3)
    assert [os.path.relpath(path, folder) for path in found] == ["deep/er/new", "middle", "old"]
    (folder / "old/step0/rank0/stack.json").write_text("{}")
    assert newest_runs(str(folder), 1) == [str(folder / "old")], "any file of a run counts"


def test_fewer_runs_than_needed_are_an_error_that_names_them(folder: Path) -> None:
    with pytest.raises(FileCheckException, match=r"holds 1 run \(.*old\); 2 are needed"):
        newest_runs(str(folder / "old"), 2)
    with pytest.raises(FileCheckException, match="holds 0 runs; 2 are needed"):
        newest_runs(str(folder / "empty"), 2)


def test_compare_takes_the_newest_as_the_run_under_test(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder.parent / f"{folder.name}_output"
    assert cli.main(["compare", "--last", str(folder / "deep"), "-o", str(output)]) == 2
    os.rename(folder / "middle/graph", folder / "deep/before")
    assert cli.main(["compare", "--last", str(folder / "deep"), "-o", str(output)]) == 0
    said = capsys.readouterr()
    assert f"{folder}/deep/er/new is compared with {folder}/deep/before" in said.err + said.out
    (table,) = output.rglob("*.csv")
    row = runs.rows(table)[0]
    assert float(row["NPU max"]) == 3_000 and float(row["Bench max"]) == 2_000


def test_two_paths_stand_for_target_and_golden(folder: Path) -> None:
    output = folder.parent / f"{folder.name}_output"
    assert cli.main(["compare", str(folder / "old"), str(folder / "deep/er/new"), "-o", str(output)]) == 0
    (table,) = output.rglob("*.csv")
    row = runs.rows(table)[0]
    assert float(row["NPU max"]) == 1_000 and float(row["Bench max"]) == 3_000
