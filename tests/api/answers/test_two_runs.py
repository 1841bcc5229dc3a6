"""Two runs, named in one order by every command, and the newest ones below a folder by ``--last``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pytest
import runs

from probe.api import cli
from probe.api.commands.config_check import set_sides
from probe.api.commands.monitor import MonitorReport

PLACES = ("old/step0/rank0", "deep/er/new/step0/rank0", "middle/step0/rank0")
TIMES = (1_000, 3_000, 2_000)


OLDER = {
    "compare": "-tp RUN -gp BASELINE",
    "graph_visualize": "-tp RUN -gp BASELINE",
    "api_precision_compare": "-npu RUN -gpu BASELINE",
    "ckpt_compare": "RUN BASELINE",
    "rollout_check": "RUN BASELINE",
    "config_check": "-c BASELINE RUN",
    "report": "RUN BASELINE",
}
"""The commands that compare two runs, with the flags of msProbe if it has some."""


@pytest.mark.parametrize("name", OLDER)
def test_every_command_takes_the_run_first_and_the_baseline_by_one_flag(name: str) -> None:
    parser = argparse.ArgumentParser()
    command = MonitorReport() if name == "report" else cli.command_named(name)
    command.prepare_parser(parser)
    forms = [parser.parse_args(form.split()) for form in ("RUN BASELINE", "--baseline BASELINE RUN", OLDER[name])]
    if name == "config_check":
        for form in forms:
            set_sides(form)
            form.target = form.baseline = None
        assert forms[0].compare == ["BASELINE", "RUN"]
    assert forms[0] == forms[1] == forms[2]
    if name != "graph_visualize":  # which takes several
        with pytest.raises(SystemExit):
            parser.parse_args(["RUN", "BASELINE", "--baseline", "OTHER"])


@pytest.mark.parametrize("name", ["compare", "graph_visualize"])
def test_a_flag_and_a_position_for_one_side_are_refused_and_flags_stand_anywhere(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (str(tmp_path / side) for side in "ab")
    for path in (one, other):
        runs.write(Path(path) / "step0" / "rank0", [np.ones(4, np.float32)])
    assert cli.main([name, "-tp", one, other]) == 2
    assert f"argument RUN: {one} and {other} are given; give one of them." in capsys.readouterr().err
    assert cli.main([name, one, "-o", str(tmp_path / "out"), other, "-q"]) == 0
    assert capsys.readouterr().out.startswith("no divergence")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place, time in zip(PLACES, TIMES):
        runs.write(tmp_path / place, [np.full(4, time, np.float32)])
        os.utime(tmp_path / place / "dump.json", (time, time))
    (tmp_path / "empty" / "step0").mkdir(parents=True)
    return tmp_path


def test_fewer_runs_than_needed_are_an_error_that_names_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for below, holds in (("old", "holds 1 run"), ("empty", "holds 0 runs")):
        assert cli.main(["compare", "--last", str(folder / below), "-o", str(folder / "out")]) == 2
        error = capsys.readouterr().err
        assert holds in error and str(folder / below) in error


def test_compare_takes_the_newest_as_the_run_under_test(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder.parent / f"{folder.name}_output"
    assert cli.main(["compare", "--last", str(folder), "-o", str(output)]) == 0
    said = capsys.readouterr()
    assert f"{folder}/deep/er/new is compared with {folder}/middle" in said.err + said.out
    assert sides(output) == (3_000, 2_000)
    # Any file of a run counts.
    (folder / "old/step0/rank0/stack.json").write_text("{}")
    assert cli.main(["compare", "--last", str(folder), "-o", str(output / "again")]) == 0
    assert sides(output / "again") == (1_000, 3_000)


def sides(output: Path) -> tuple[float, float]:
    """The values of both runs in the table."""
    (table,) = output.glob("**/*.csv")
    row = runs.rows(table)[0]
    return float(row["NPU max"]), float(row["Bench max"])
