"""The reader of monitor folders: both layouts, all ranks, what is torn, of another version, or of several runs."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from monitor_rows import MadeTraining, write_first_layout

import probe
from probe.api.cli import main
from probe.common.errors import FileCheckException
from probe.monitor.monitor_run import Follower, read_monitor

CASES = Path(__file__).parent / "cases"


@pytest.mark.parametrize(("case", "ranks", "steps"), [("v1_alert", [0], 6), ("v1_ddp", [0, 1], 2), ("v2_full", [0], 2)])
def test_recorded_folders_are_read_whole(case: str, ranks: list[int], steps: int) -> None:
    run = read_monitor(str(CASES / case))
    assert (run.ranks, len(run.steps), run.notes) == (ranks, steps, [])
    files = {path: path.read_text().splitlines() for path in (CASES / case).rglob("*.csv")}
    columns = run.columns()
    assert {len(each) for each in columns.values()} == {sum(len(lines) - 1 for lines in files.values())}
    # Each value of each file, by name and step.
    for path, lines in files.items():
        for row in csv.DictReader(lines):
            name = row.get("name") or row["module_name"]
            at = [
                index for index, step in enumerate(columns["step"])
                if step == int(row["step"])
                and columns["name"][index] in (name, name.removesuffix(f".{row.get('scope')}"))
            ]  # fmt: skip
            assert any(_same(columns["norm"][index], float(row["norm"])) for index in at), (path, row)


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    training = MadeTraining()
    return write_first_layout(tmp_path / "monitor_output", [training.step(step) for step in range(12)], per_file=5)


def test_a_torn_last_row_is_said_and_nothing_else_is_lost(folder: Path) -> None:
    whole = len(read_monitor(str(folder)).columns()["step"])
    path = folder / "grad_reduced_10-14.csv"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    run = read_monitor(str(folder.parent))
    assert len(run.columns()["step"]) == whole - 1
    assert run.notes == [f"{path}: the last row is incomplete and is left out."]


def test_a_file_of_another_version_is_said_and_the_others_are_read(folder: Path) -> None:
    path = folder / "actv_0-4.csv"
    path.write_text("format,3\nx,1\n")
    run = read_monitor(str(folder))
    assert run.notes == [f"{path} has no column name and no column step; it is of another version, and is not read."]
    assert min(run.of_rank[0]["actv"].step) == 5


def test_a_column_that_is_not_known_is_kept(folder: Path) -> None:
    path = folder / "exp_avg_0-4.csv"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},kurtosis,placement", *(f"{line},3.5,Shard(0)" for line in lines)]) + "\n")
    columns = read_monitor(str(folder)).columns()
    assert 3.5 in columns["kurtosis"] and "Shard(0)" in columns["placement"]


def test_of_several_runs_the_last_one_is_read(tmp_path: Path) -> None:
    training = MadeTraining()
    old = write_first_layout(tmp_path, [training.step(step) for step in range(3)])
    other = old.rename(tmp_path / "Nov26_10-00-00-rank0-ffffffff")
    for path in other.iterdir():
        os.utime(path, (1, 1))
    new = write_first_layout(tmp_path, [training.step(step) for step in range(7)])
    run = read_monitor(str(tmp_path))
    assert len(run.steps) == 7 and len(run.notes) == 1
    assert new.name in run.notes[0] and other.name in run.notes[0]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(library: str) -> None:
    pytest.importorskip(library)
    frame = probe.load_monitor(str(CASES / "v1_ddp"), library)
    plain = probe.load_monitor(str(CASES / "v1_ddp"), "dict")
    assert list(frame.columns) == list(plain)
    assert list(frame["norm"]) == plain["norm"]
    assert set(frame["rank"]) == {0, 1}


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder"])
def test_what_is_no_monitor_folder_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if what == "a file":
        path.write_text("")
    elif what == "an empty folder":
        path.mkdir()
    with pytest.raises(FileCheckException, match=str(path)):
        read_monitor(str(path))


def test_a_growing_folder_is_read_on(folder: Path) -> None:
    """Half a row is left for the next look; nothing is read twice."""
    files = {path: path.read_bytes() for path in folder.iterdir()}
    whole = read_monitor(str(folder)).columns()
    follower, seen = Follower(str(folder.parent)), []
    cuts = np.random.default_rng(0)
    for path in files:
        path.write_bytes(b"")
    while any(path.stat().st_size < len(content) for path, content in files.items()):
        for path, content in files.items():
            path.write_bytes(content[: path.stat().st_size + int(cuts.integers(0, 1500))])
        seen += follower.read_on().columns()["norm"]
    assert sorted(seen) == sorted(whole["norm"])
    assert follower.notes == []


@pytest.mark.parametrize("number", ["99999999999999999999999", "-9223372036854775809", "1" + "0" * 4199, "1e30"])
@pytest.mark.parametrize("column", ["step", "vpp_stage"])
def test_a_number_of_more_than_64_bits_is_none_for_the_table_and_the_database(
    tmp_path: Path, number: str, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run" / "Nov27_10-00-00-rank0-0123abcd"
    folder.mkdir(parents=True)
    row = f"0,a,{number},1.5" if column == "step" else f"{number},a,7,1.5"
    (folder / "grad_reduced_7-7.csv").write_text(f"vpp_stage,name,step,norm\n{row}\n")
    (folder / "grad_unreduced_7-7.csv").write_text("vpp_stage,name,step,norm\n0,a,7,1.5\n")
    table = probe.load_monitor(str(tmp_path / "run"), "dict")
    assert table["step"] == [7] * (1 if column == "step" else 2)
    assert main(["data2db", "--data", str(tmp_path / "run"), "--db", str(tmp_path / "db")]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_shards_are_joined_to_the_statistics_of_the_whole(tmp_path: Path) -> None:
    whole = np.random.default_rng(2).normal(size=(5, 4))
    whole[0, 0] = 0
    parts = {0: whole[:3], 1: whole[3:], 2: whole[:3], 3: whole[3:]}

    def line(name: str, values: Any, placement: str) -> str:
        numbers = [values.min(), values.max(), values.mean(), np.linalg.norm(values), (values == 0).mean(), 3.5]
        shape = str(list(values.shape))
        return f'0,{name},7,{",".join(repr(float(each)) for each in numbers)},"{shape}",torch.float32,"{placement}"\n'

    for rank, part in parts.items():
        folder = tmp_path / f"Nov27_10-00-00-rank{rank}-0123abcd"
        folder.mkdir()
        text = "vpp_stage,name,step,min,max,mean,norm,zeros,kurtosis,shape,dtype,placement\n"
        text += line("a.weight", part, "R, S(0) of [5, 4]") + line("b.weight", whole, "")
        (folder / "param_origin_7-7.csv").write_text(text)
    table = probe.load_monitor(str(tmp_path), "dict", join_shards=True)
    assert (table["rank"][0], table["name"][0]) == (0, "a.weight")
    assert sorted(table["name"]) == ["a.weight", *["b.weight"] * 4]
    row = {name: column[table["name"].index("a.weight")] for name, column in table.items()}
    expected = [whole.min(), whole.max(), whole.mean(), np.linalg.norm(whole), 1 / 20]
    assert [row[op] for op in ("min", "max", "mean", "norm", "zeros")] == pytest.approx(expected, rel=1e-12)
    assert math.isnan(row["kurtosis"]) and row["shape"] == "[5, 4]" and row["placement"] == "joined from 4 ranks"
