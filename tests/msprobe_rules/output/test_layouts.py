"""The tables of msProbe are written as it writes them, and read in either form."""

from __future__ import annotations

from pathlib import Path

import pytest
from result_tables import read_results

from probe.common.errors import MsprobeException
from probe.msprobe_rules.precheck.details import DetailsRow, read_details
from probe.msprobe_rules.precheck.form import Form
from probe.msprobe_rules.precheck.layout import MSPROBE, PLAIN

CASES = Path(__file__).parents[2] / "precheck" / "cases"


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
