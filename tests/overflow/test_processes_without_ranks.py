"""Several processes of one run without ranks: each is followed by itself, and named by its folder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from made_dumps import call, constant, write

from probe.api.cli import main
from probe.common.dump.layout import PROCESS_FILE
from probe.overflow.find_overflow import find_overflow


def process(folder: Path, order: int, given: float, made: float) -> None:
    write(folder, {"Torch.sqrt.0.forward": call([constant(given)], [constant(made)])})
    (folder / PROCESS_FILE).write_text(json.dumps({"run": "a", "order": [order]}))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """In step 1 the second process gets what is not finite from outside, and the third one makes it."""
    for step in range(2):
        for order, (given, made) in enumerate([(1.0, 1.0), (math.nan, math.nan), (1.0, math.nan)]):
            values = (given, made) if step else (1.0, 1.0)
            process(tmp_path / f"step{step}" / f"proc{99 - order}", order, *values)
    return tmp_path


def test_what_one_process_finds_is_not_blamed_on_another(run: Path) -> None:
    report = find_overflow(str(run))
    assert report.found is not None and report.found.step == 1 and len(report.folders) == 6
    found = {report.found.name_of(each.rank): each.kind for each in report.first}
    assert found == {"proc98": "outside", "proc97": "origin"}
    assert report.found.affected == {0: 0, 1: 1, 2: 1} and report.found.notes == []
    # The same process in the step before.
    growth = {report.found.name_of(each.rank): each.growth for each in report.first}
    assert [len(growth["proc97"]), growth["proc97"][0]["step"]] == [1, 0]


def test_the_processes_are_named_by_their_folders(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["overflow_check", "-i", str(run), "-o", str(tmp_path / "out"), "--no_page"]
    assert main(call) == 1
    text = capsys.readouterr().out
    assert "proc97: Torch.sqrt.0.forward (origin" in text and "1 of 1 records on proc98" in text
    assert main([*call, "--json"]) == 1
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert steps[1]["processes"] == {"0": "proc99", "1": "proc98", "2": "proc97"}


def test_a_single_process_has_the_name_of_its_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (run / "step1" / "proc97", run / "step1" / "proc97" / "dump.json"):
        assert main(["overflow_check", "-i", str(path), "-o", str(tmp_path / "out"), "--no_page"]) == 1
        text = capsys.readouterr().out
        assert text.startswith("step 1, proc97: Torch.sqrt.0.forward (origin") and "1 of 1 records on proc97" in text
        assert "rank 0" not in text
    assert main(["overflow_check", "-i", str(run / "step0" / "proc97")]) == 0
    assert "all values are finite in 1 records of 1 process and 1 step." in capsys.readouterr().out


def test_a_process_without_a_rank_is_not_taken_for_that_of_a_rank(tmp_path: Path) -> None:
    process(tmp_path / "step0" / "rank0", 0, 1.0, 1.0)
    process(tmp_path / "step0" / "proc9", 1, 1.0, math.nan)
    report = find_overflow(str(tmp_path))
    assert report.found is not None and [report.found.name_of(each.rank) for each in report.first] == ["proc9"]
    assert report.found.affected == {0: 0, 1: 1}


def test_where_all_is_finite_every_process_is_counted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overflow_check", "-i", str(run / "step0")]) == 0
    assert "all values are finite in 3 records of 3 processes and 1 step." in capsys.readouterr().out


def test_a_damaged_dump_is_named_by_the_path_that_was_given(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "step1" / "proc97" / "dump.json").write_text('{"data": {')
    monkeypatch.chdir(run.parent)
    assert main(["overflow_check", "-i", run.name, "-o", "out", "--no_page"]) == 2
    assert f"msprobe overflow_check: {run.name}/step1/proc97/dump.json: " in capsys.readouterr().err
