"""The recorded comparisons: runs the command of a case, and holds its tables against those of the real tool.

With ``--rules msprobe`` every cell must be the same. By default, results and messages are those of our judgement; what
differs in other cells must come from a defect that the case names in `DEFECTS`; the numbers are those of the
specification, and what we do instead has tests of its own.
"""

from __future__ import annotations

import csv
import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probe.api import cli

CASES = Path(__file__).parents[1] / "compare" / "cases"
REAL_DATA = ("tensor", "tensor_nan", "fuzzy_tensor", "shape_mismatch_tensor")
JUDGED = ("Result", "Err_message")
DEFECTS = {
    "missing_apis_stat": {"D3", "D5", "D6", "order"},
    "requires_grad_stat": {"D5"},
    "fuzzy_tensor": {"D5"},
    "shape_mismatch_tensor": {"D5"},
    "cross_ms_pt": {"D5", "D12", "names"},
}


@dataclass(frozen=True)
class Run:
    """One command of one case."""

    case: str
    number: int
    arguments: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        start = self.arguments.index("-o") + 2
        return "-".join([self.case, *(part.strip("-") for part in self.arguments[start:])])


def runs(real_data: bool) -> list[Run]:
    """Every command of every case that needs torch, or that needs none."""
    found = []
    for path in sorted(CASES.glob("*/case.json")):
        case = path.parent.name
        if (case in REAL_DATA) == real_data:
            for number, run in enumerate(json.loads(path.read_text())["runs"]):
                if run["exit_status"] != 0:
                    continue  # The real tool crashed (D4); test_mapping.py has what we do.
                arguments = tuple(shlex.split(run["command"])[1:])
                found.append(Run(case, number, arguments, tuple(run["outputs"].items())))
    return found


def execute(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[tuple[Path, Path]]:
    """Run the command; returns each output with the file that says what it should be."""
    monkeypatch.chdir(CASES / run.case)
    arguments = [str(folder) if part == "out" else part for part in run.arguments]
    assert cli.main([*arguments, *more]) == 0
    found = []
    for pattern, expected in run.outputs:
        (made,) = folder.glob(pattern.replace("{timestamp}", "[0-9]*"))
        found.append((made, CASES / run.case / expected))
    # What we propose for two frameworks no other tool writes.
    written = [path for path in folder.iterdir() if "msprobe" in more or not path.name.startswith("layer_mapping_")]
    assert len(written) == len(found)
    return found


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def columns(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as stream:
        return next(csv.reader(stream))


def same(ours: Any, theirs: Any) -> bool:
    """Texts alike, numbers and percentages to 1e-9 relative."""
    if ours == theirs:
        return True
    if not isinstance(ours, str) or not isinstance(theirs, str):
        return isinstance(ours, float) and isinstance(theirs, float) and math.isclose(ours, theirs, rel_tol=1e-9)
    if ours.endswith("%") != theirs.endswith("%"):
        return False
    try:
        return math.isclose(float(ours.rstrip("%")), float(theirs.rstrip("%")), rel_tol=1e-9)
    except ValueError:
        return False


def differences(ours: list[dict[str, str]], theirs: list[dict[str, str]]) -> list[str]:
    """Every cell that is not the same."""
    assert [row["NPU Name"] for row in ours] == [row["NPU Name"] for row in theirs]
    return [
        f"{mine['NPU Name']}: {column}: {mine[column]!r}, not {cell!r}"
        for mine, row in zip(ours, theirs)
        for column, cell in row.items()
        if not same(mine[column], cell)
    ]


def check_apart_from_defects(run: Run, made: Path, expected: Path) -> None:
    """Assert that what differs from the record, but for results, comes from the defects of this case."""
    defects = DEFECTS.get(run.case, set())
    assert columns(made) == columns(expected)
    ours, theirs = table(made), table(expected)
    # What only the golden side has follows at the end.
    more = ours[len(theirs) :]
    assert all(row["NPU Name"] == "N/A" and row["Result"] != "pass" for row in more)
    assert not more or "D5" in defects
    pairs = list(zip(ours, theirs))
    if "D3" in defects and len(run.arguments) > 7:
        pairs = [(row, other) for row, other in pairs if ".backward." not in row["NPU Name"]]
    if "order" in defects:
        # A call more moves the numbers of those after it; we pair these by what they take and by their order.
        pairs = [(row, other) for row, other in pairs if row["Bench Name"] == other["Bench Name"]]
    # Pairs that the real tool does not see: of other types, or of names that we know to be the same.
    kept = [row for row, other in pairs if row["Bench Name"] != other["Bench Name"] == "N/A"]
    assert not kept or defects & {"D6", "names"}
    assert "names" in defects or all(row["NPU Dtype"] != row["Bench Dtype"] for row in kept)
    pairs = [(row, other) for row, other in pairs if row not in kept]
    if "D12" in defects:
        # Where the golden side says nothing of gradients the real tool calls a matched pair inconsistent.
        for row, other in pairs:
            if other["Bench Name"] != "N/A" and "N/A" in (row["NPU Requires_grad"], row["Bench Requires_grad"]):
                assert row["Requires_grad Consistent"] == "True"
                other["Requires_grad Consistent"] = "True"
    found = differences(*([_without_results(row) for row in side] for side in zip(*pairs)))
    assert not found, "\n".join(found)


def _without_results(row: dict[str, str]) -> dict[str, str]:
    return {name: cell for name, cell in row.items() if name not in JUDGED}
