"""``msprobe api_precision_compare``: its files, what it prints, and its exit statuses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from result_tables import read_results

from probe.api.cli import main

CASES = Path(__file__).parents[1] / "precheck" / "cases"
CLEAN, PLANTED = str(CASES / "replay/clean_details.csv"), str(CASES / "replay/planted_details.csv")


def run(npu: str, gpu: str, folder: Path, *more: str) -> int:
    return main(["api_precision_compare", "-npu", npu, "-gpu", gpu, "-o", str(folder), *more])


def test_all_that_passes_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CLEAN, CLEAN, tmp_path / "new") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "13 cases: 13 pass"
    details, result = (Path(line) for line in printed[1:])
    assert details.parent == result.parent == tmp_path / "new"
    assert details.read_text().startswith("API Name,small_value_ratio,small_value_verdict,rmse_ratio,")
    assert len(read_results(str(result))) == 13


def test_an_error_ends_with_1_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PLANTED, CLEAN, tmp_path) == 1
    printed = capsys.readouterr().out
    assert "13 cases: 4 error, 9 pass\n" in printed
    assert "error: Functional.embedding.0: NaN or infinity on the NPU, and none on the GPU.\n" in printed
    assert run(PLANTED, CLEAN, tmp_path, "--fail-on", "never") == 0
    assert run(PLANTED, CLEAN, tmp_path, "--fail-on", "warning") == 1


def test_the_release_is_given_as_it_is(tmp_path: Path) -> None:
    assert run(PLANTED, CLEAN, tmp_path, "--standard", "26.2", "--headers", "msprobe") == 1
    (details,) = tmp_path.glob("api_precision_compare_details_*.csv")
    assert details.read_bytes() == (CASES / "replay/planted_against_clean_details.csv").read_bytes()


def test_another_table_is_refused_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(CASES / "replay/clean_result.csv"), CLEAN, tmp_path) == 2
    assert "clean_result.csv: has no column Bench Dtype" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_command_line_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / "none.csv"), CLEAN, tmp_path) == 2
    assert "none.csv: there is no such file" in capsys.readouterr().err
    assert run(CLEAN, CLEAN, tmp_path, "--standard", "8.1") == 2


@pytest.mark.parametrize("number", ["1" + "0" * 4199, "-" + "9" * 400, "abc", "x" * 200_000])
@pytest.mark.parametrize("side", ["npu", "gpu"])
def test_a_cell_that_is_no_number_of_a_format_is_refused_by_its_heading(
    tmp_path: Path, side: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(CLEAN, newline="", encoding="utf-8") as stream:
        header, *rows = list(csv.reader(stream))
    at = 5  # the largest absolute error
    rows = [[number if place == at else cell for place, cell in enumerate(row)] for row in rows]
    path = tmp_path / "changed.csv"
    with path.open("w", newline="", encoding="utf-8") as written:
        csv.writer(written).writerows([header, *rows])
    tables = {"npu": CLEAN, "gpu": CLEAN, side: str(path)}
    assert run(tables["npu"], tables["gpu"], tmp_path / "new") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "changed.csv" in line and len(line) < 500
