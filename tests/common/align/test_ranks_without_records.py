"""A rank whose folder holds no records is named in a warning and left out, by every command that reads a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from made_dumps import written

from probe.api.cli import main

VALUE = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 1.0, "Mean": 1.0,
         "Norm": 1.4142}  # fmt: skip
RECORDS = {"Functional.relu.0.forward": {"input_args": [VALUE], "input_kwargs": {}, "output": [VALUE]}}
MERGED = ["--rank_size", "2", "2", "--tp", "2", "2", "--pp", "1", "1"]


def made(run: Path, ranks: int) -> Path:
    """A run with records of two ranks, and with folders of `ranks` ranks."""
    for rank in range(ranks):
        folder = run / "step0" / f"rank{rank}"
        folder.mkdir(parents=True)
        if rank < 2:
            written(folder, RECORDS, None)
    return run


@pytest.mark.parametrize("golden_ranks", [2, 3])
@pytest.mark.parametrize(
    "command",
    [["show"], ["overflow_check", "-i"], ["graph_visualize", "-tp"], ["compare"], ["graph_visualize"],
     ["compare", *MERGED], ["graph_visualize", *MERGED]],
    ids=" ".join,
)  # fmt: skip
def test_is_named_in_a_warning_and_left_out(
    command: Sequence[str], golden_ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, golden = made(tmp_path / "run", 3), made(tmp_path / "golden", golden_ranks)
    takes_two = command[0] in ("compare", "graph_visualize") and command[-1] != "-tp"
    paths = ["-tp", str(run), "-gp", str(golden)] if takes_two else [str(run)]
    output = [] if command[0] == "show" else ["-o", str(tmp_path / "out")]
    assert main([*command, *paths, *output]) == 0
    said = capsys.readouterr().err
    assert f"{run}/step0: no records were found of rank2." in said
    assert "msprobe" not in said and "dump.journal" not in said


@pytest.mark.parametrize("command", ["compare", "graph_visualize"])
def test_runs_whose_ranks_have_no_records_in_common_are_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, rank in (("run", 0), ("golden", 1)):
        for each in range(2):
            folder = tmp_path / run / "step0" / f"rank{each}"
            folder.mkdir(parents=True)
            if each == rank:
                written(folder, RECORDS, None)
    paths = ["-tp", str(tmp_path / "run"), "-gp", str(tmp_path / "golden"), "-o", str(tmp_path / "out")]
    assert main([command, *paths]) == 2
    assert "have no rank in common of which both hold records" in capsys.readouterr().err


@pytest.mark.parametrize("has_golden", [True, False])
def test_a_comparison_that_graph_visualize_cannot_make_is_named_once(
    has_golden: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path / "run", 2)
    damaged = run / "step0" / "rank1" / "dump.json"
    damaged.write_text('{"data": 3}', encoding="utf-8")
    golden = ["-gp", str(run)] if has_golden else []
    assert main(["graph_visualize", "-tp", str(run), *golden, "-o", str(tmp_path / "out")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert line.count(str(damaged.parent)) == 1
    assert ("step0 rank1 is left out: " in line) if has_golden else line.endswith(". It is left out.")
