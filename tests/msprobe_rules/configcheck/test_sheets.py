"""Sheets held to those that msProbe 26.2 wrote for the same packs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe.api import cli
from probe.configcheck.pack import read_pack
from probe.msprobe_rules.configcheck import sheets

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.name for path in CASES.iterdir())


def in_order(name: str, rows: list[Any]) -> list[Any]:
    # The order of functions is that of a set there.
    return [rows[0], *sorted(rows[1:], key=str)] if name == "random" else rows


@pytest.mark.parametrize("case", NAMES)
def test_sheets_are_those_of_msprobe(case: str) -> None:
    expected = json.loads((CASES / case / "real_result.json").read_text())["sheets"]
    found = sheets(read_pack(str(CASES / case / "bench.zip")), read_pack(str(CASES / case / "cmp.zip")))
    # Folders are left out of stacks here.
    text = json.dumps(expected).replace("File /job/", "File ")
    assert found.keys() == expected.keys()
    for name, rows in json.loads(text).items():
        assert in_order(name, found[name]) == in_order(name, rows), name


def test_the_command_writes_the_workbook(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    case, out = CASES / "hyper", str(tmp_path / "out")
    arguments = ["config_check", "-c", str(case / "bench.zip"), str(case / "cmp.zip"), "--rules", "msprobe", "-o", out]
    assert cli.main(arguments) == 1
    book = openpyxl.load_workbook(tmp_path / "out" / "result.xlsx")
    expected = json.loads((case / "real_result.json").read_text())["sheets"]
    assert book.sheetnames == list(expected)
    assert [list(row) for row in book["hyperparameters"].iter_rows(values_only=True)] == expected["hyperparameters"]
    assert cli.main(arguments) == 2, "a folder with files is refused"
