"""The tables of checks that run with the program hold no cell that a spreadsheet computes. No framework."""

from __future__ import annotations

import csv
from pathlib import Path

from probe.calls.verdict.subject import ERROR, KernelVerdict
from probe.runtime_checks import examination as findings
from probe.runtime_checks import online_check
from probe.runtime_checks.examination import UNSTABLE, CheckFinding, FindingsFile
from probe.runtime_checks.online_check import OnlineCheck, OperatorResult

FORMULA = '=HYPERLINK("x")'


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


def test_a_name_that_is_a_formula_is_text_in_the_table_of_free_benchmark(tmp_path: Path) -> None:
    table = FindingsFile(str(tmp_path / "step0" / "rank0" / "free"))
    for rank in (None, 3):
        table.add(
            CheckFinding(rank, "improve_precision", "forward", 0, FORMULA, -0.5, "float32", "[2]", 1, UNSTABLE, "+1+1")
        )
    header, first, second = rows(Path(table.path))
    assert tuple(header) == findings.HEADER
    cells = ["", "improve_precision", "forward", "0", f"'{FORMULA}", "-0.5", "float32", "[2]", "1", UNSTABLE, "'+1+1"]
    assert first == cells
    assert second == ["3", *first[1:]]


class Adapter:
    """As much of an adapter as the table asks for."""

    rank = staticmethod(lambda: None)


def test_a_name_that_is_a_formula_is_text_in_the_table_of_online_check(tmp_path: Path) -> None:
    verdict = KernelVerdict(ERROR, "-2 % low", ratio=12.5, worst_index=(1, 2), worst_result=-1.5, worst_reference=2j)
    check = OnlineCheck(Adapter(), failures=[OperatorResult(FORMULA, 0, "float32", (4, 16), verdict)])  # type: ignore[arg-type]
    header, row = rows(Path(check._write(str(tmp_path))))
    assert tuple(header) == online_check.HEADER
    assert row == [
        f"'{FORMULA}", "0", "float32", "[4, 16]", ERROR, "12.5", "", "(1, 2)", "-1.5", "2j", "", "'-2 % low",
    ]  # fmt: skip
