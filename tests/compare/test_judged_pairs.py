"""Kept dumps of real runs, whose right answers are known: ``benchmarks/verdicts.py`` makes them, and many more.

A case that is ``missed`` is not answered rightly yet; the word is what is answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from judging import RIGHT, Case, judge

from probe.compare.runner import summaries

SIDES = "target", "golden"
pytestmark = pytest.mark.rounding
KEPT = Path(__file__).parent / "judged"
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "verdicts.py"
CASES: list[dict[str, Any]] = json.loads((KEPT / "cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("values", [pytest.param(case, id=f"{case['set']}-{case['case']}") for case in CASES])
def test_a_kept_pair_is_answered_rightly(dumps_of: Callable[[str], Path], values: dict[str, Any]) -> None:
    judged = judge(Case.of(values), dumps_of(values["set"]))
    assert not judged.contradicts, judged
    assert judged.word == values.get("missed", RIGHT), judged


def test_the_command_counts_what_is_said_of_a_set(dumps_of: Callable[[str], Path], tmp_path: Path) -> None:
    of_set = [case for case in CASES if case["set"] == "fused" and case["precision"] == "float32"]
    (tmp_path / "fused").symlink_to(dumps_of("fused"))
    lines = [{**case, **{side: f"fused/{case[side]}" for side in ("target", "golden")}} for case in of_set]
    (tmp_path / "fused" / "cases.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = [sys.executable, str(BENCHMARK), "--keep", str(tmp_path), "--only", "fused", "--report", "report.md"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    right, faults = (sum(case["planted"] == planted for case in of_set) for planted in (False, True))
    row = next(line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| all "))
    cells = [cell.strip() for cell in row.split("|")]
    assert (cells[4], cells[6]) == (f"{right} / 0 / 0", f"{faults} / 0 / 0 / 0 / 0"), row


@pytest.mark.parametrize("case", ["missing_gradient-frozen-right@L0", "missing_gradient-reentrant-right@mix"])
def test_a_missing_gradient_is_a_divergence_of_its_own_step(dumps_of: Callable[[str], Path], case: str) -> None:
    run = dumps_of("field") / case
    first, second = (next(summaries(str(run / mine), str(run / other))) for mine, other in (SIDES, SIDES[::-1]))
    for summary, run_without in ((first, "target"), (second, "golden run")):
        assert summary.divergence is not None and summary.step == "step0"
        assert f"up.weight has no gradient in the {run_without}" in summary.why
        assert ("requires_grad" in summary.why) == ("frozen" in case)


def test_parameters_that_are_frozen_in_both_runs_lack_no_gradient(dumps_of: Callable[[str], Path]) -> None:
    frozen = str(dumps_of("field") / "missing_gradient-frozen-right@L0" / "target")
    assert {each.answer for each in summaries(frozen, frozen)} == {"none"}
