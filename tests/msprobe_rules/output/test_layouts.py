"""The tables of msProbe are written as it writes them, and read in either form."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from result_tables import read_results

from probe.common.errors import MsprobeException
from probe.msprobe_rules.output.details import DetailsRow, read_details
from probe.msprobe_rules.output.form import Form
from probe.msprobe_rules.output.layout import MSPROBE, PLAIN, TableLayout
from probe.msprobe_rules.output.results import ResultRow

CASES = Path(__file__).parents[2] / "precheck" / "cases"
BOTH = pytest.mark.parametrize("form", [PLAIN, MSPROBE], ids=["english", "msprobe"])


@pytest.mark.parametrize("name", ["replay/clean_details.csv", "replay/planted_details.csv", "mindspore/details.csv"])
def test_recorded_details_are_written_again_bit_for_bit(name: str) -> None:
    form = Form(MSPROBE, mindspore=name.startswith("mindspore"))
    again = form.heading_of_details() + form.lines(read_details(str(CASES / name)))
    assert again == (CASES / name).read_bytes()


@pytest.mark.parametrize(
    "name", [f"{folder}_result.csv" for folder in ("replay/clean", "replay/planted")] + [
        "ops/result_odd_records.csv", "mindspore/result.csv",
    ],
)  # fmt: skip
def test_recorded_results_are_written_again_bit_for_bit(name: str) -> None:
    form = Form(MSPROBE, mindspore=name.startswith("mindspore"))
    again = form.heading_of_results() + b"".join(map(form.result_line, read_results(str(CASES / name))))
    assert again == (CASES / name).read_bytes()


ROW = DetailsRow(
    "Torch.sin.0.forward.output.0",
    "error",
    'a "quoted" word, a comma\nand a second line\n',
    "float64",
    "bfloat16",
    (2, 3),
    {"cosine": 0.1 + 0.2, "max_abs": math.inf, "rmse": math.nan, "max_rel": 1e-300, "small_value_share": 0},
)


@BOTH
def test_a_row_comes_back_as_it_was(form: TableLayout, tmp_path: Path) -> None:
    whole = Form(form)
    path = tmp_path / "details.csv"
    path.write_bytes(whole.heading_of_details() + whole.lines([ROW, ROW]))
    first, second = read_details(str(path))
    assert first == second or math.isnan(first.metrics["rmse"])
    assert (first.name, first.status, first.bench_dtype, first.device_dtype) == (
        ROW.name, ROW.status, "float64", "bfloat16",
    )  # fmt: skip
    assert first.shape == (2, 3)
    assert first.message == (ROW.message if form.is_msprobe else " ".join(ROW.message.split()))
    assert first.metrics["max_abs"] == math.inf
    assert math.isnan(first.metrics["rmse"])
    if not form.is_msprobe:
        assert {name: first.metrics[name] for name in ("cosine", "max_rel")} == {"cosine": 0.1 + 0.2, "max_rel": 1e-300}


@pytest.mark.parametrize(
    ("row", "bytes_of_msprobe"),
    [
        (ResultRow("Torch.sin.0", "pass"), b"Torch.sin.0,pass, \r\n"),
        (ResultRow("Torch.sin.0", "pass", "warning"), b"Torch.sin.0,pass,warning\r\n"),
        (ResultRow("Torch.to.0", "SKIP", "SKIP", "no"), b"Torch.to.0,SKIP,SKIP,no\r\n"),
    ],
)
def test_the_release_gives_only_skipped_cases_a_message(row: ResultRow, bytes_of_msprobe: bytes) -> None:
    assert Form(MSPROBE).result_line(row) == bytes_of_msprobe
    assert Form(PLAIN).result_line(row).count(b",") == 3


HEADING = Form(PLAIN).heading_of_details().decode()
GOOD = Form(PLAIN).lines([DetailsRow("Torch.sin.0.forward.output.0", "pass", device_dtype="float32")]).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "has no column API Name, Bench Dtype"),
        ("", "has no column"),
        (HEADING + GOOD + "Torch.cos.0,1\n", "line 3: 2 cells under 23 headings"),
        (HEADING + GOOD[:-1] + GOOD, "cells under 23 headings"),
        (HEADING + GOOD.replace(",pass,", ",passed,"), "line 2: Status is 'passed'; allowed: pass, warning,"),
        (HEADING + GOOD.replace("float32,,", 'float32,"(2, x)",'), r"line 2: Shape is '\(2, x\)'"),
        (HEADING + GOOD.replace("float32,,,", "float32,,much,"), "line 2: cosine is 'much'; allowed: a number"),
        (HEADING + GOOD.replace("Torch.sin.0.forward.output.0", ""), "line 2: API Name is empty"),
        (HEADING + GOOD[:-1] + '"half', "not a whole row of CSV"),
    ],
)
def test_a_damaged_table_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "details.csv"
    path.write_text(text)
    with pytest.raises(MsprobeException, match=message) as raised:
        read_details(str(path))
    assert str(path) in str(raised.value)
