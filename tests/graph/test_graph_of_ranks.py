"""``msprobe graph_visualize`` with ranks that exchange data, and with ranks merged into one model."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from graph_commands import FIRST, IN_WORDS, LLAMA, of_one_run, run_of, shown
from graph_dumps import CASES, call, tensor
from made_dumps import written
from written_pages import page_in

import probe
from probe.api.cli import main


def test_calls_of_ranks_that_exchange_data_name_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = CASES.parents[1] / "compare" / "cases" / "multi_rank"
    shown(capsys, "-tp", runs / "target", "-gp", runs / "golden", "-o", tmp_path, "--format", "html,db")
    page = page_in(tmp_path)
    found = {}
    for comparison in (0, 1):
        rows = page.rows(comparison)
        for row, detail in enumerate(page.details(comparison)):
            for other, at, text in detail.get("partners", []):
                found[comparison, rows[row][0], text] = other, page.rows(other)[at][0]
    assert found[0, "Distributed.send.0.forward", "send to rank 1"] == (1, "Distributed.recv.0.forward")
    assert found[1, "Distributed.recv.0.forward", "receive from rank 0"] == (0, "Distributed.send.0.forward")
    assert found[0, "Distributed.all_reduce.0.forward", "all_reduce with ranks 0, 1"][0] == 1
    (database,) = tmp_path.glob("compare_*.vis.db")
    with sqlite3.connect(database) as connection:
        query = "select count(*) from tb_nodes where matched_distributed like '%Distributed.recv.0.forward%'"
        assert connection.execute(query).fetchone()[0] >= 1
    connection.close()


def test_merged_ranks_are_opened_to_their_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = run_of(tmp_path / "a", ["step0/rank0", "step0/rank1"], of="llama_weight")
    golden = run_of(tmp_path / "b", ["step0/rank0", "step0/rank1"])
    flags = ["--rank_size", "2", "2", "--tp", "2", "2", "--pp", "1", "1"]
    lines = shown(capsys, "-tp", target, "-gp", golden, "-o", tmp_path / "out", *flags)
    page = page_in(tmp_path / "out")
    assert lines[-1] == f"{page.path}: 303 nodes, {IN_WORDS}"
    assert [each["run"] for each in page.manifest["comparisons"]] == ["", "rank 0", "rank 1"]
    assert any("Merged of ranks 0, 1" in note for note in page.manifest["comparisons"][0]["notes"])
    row = page.manifest["comparisons"][0]["first"]
    parts = page.details()[row]["parts"]
    assert [(name, page.rows(comparison)[at][0]) for name, comparison, at in parts] == [
        ("rank 0", FIRST), ("rank 1", FIRST),
    ]  # fmt: skip
    shown(capsys, "-tp", target, "-o", tmp_path / "merged", "--rank_size", "2", "--tp", "2", "--pp", "1",
          "--file_type", "json")  # fmt: skip
    assert len(probe.open_graph(tmp_path / "merged" / "step0" / "rank0")) == 303


def test_merged_dumps_replace_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", ["step0/rank0", "step0/rank1"])
    before = (run / "step0" / "rank0" / "dump.json").read_bytes()
    flags = ["--rank_size", "2", "--tp", "2", "--pp", "1", "--file_type", "json"]
    assert main(["graph_visualize", "-tp", str(run), "-o", str(run), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{run / 'step0' / 'rank0'} holds a dump already" in line
    assert (run / "step0" / "rank0" / "dump.json").read_bytes() == before


def test_two_merged_dumps_of_one_place_are_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{kind}/step0/rank{rank}" for kind in ("graph", "pynative") for rank in (0, 1)]
    run = run_of(tmp_path / "run", names)
    flags = ["--rank_size", "2", "--tp", "2", "--pp", "1", "--file_type", "json"]
    assert main(["graph_visualize", "-tp", str(run), "-o", str(tmp_path / "out"), *flags]) == 2
    assert "has two dumps for" in capsys.readouterr().err
    assert not (tmp_path / "out" / "step0").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rank_size", "2"], "--tp is missing"),
        (["--tp", "2"], "--rank_size is missing"),
        (["--order", "garbage"], '--order is "garbage"; allowed: tp, dp and pp once each'),
        (["--rank_size", "2", "--tp", "2", "--pp", "1", "--order", "garbage"], '--order is "garbage"'),
        (["--rank_size", "2", "--tp", "2", "--pp", "1", "-gp", LLAMA], "--rank_size has 1 values"),
        (["--file_type", "json"], "--file_type json writes merged dumps"),
        (["--rank_size", "2", "--tp", "2", "--pp", "1", "-tp", LLAMA], "give at most one of each"),
    ],
)
def test_wrong_flags_of_merging_are_one_line(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph_visualize", "-tp", LLAMA, *flags]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_ranks_that_do_not_communicate_do_not_hide_the_partners_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = CASES.parents[1] / "compare" / "cases" / "multi_rank" / "target" / "step0"
    run = tmp_path / "run"
    relu = {"Functional.relu.0.forward": call(tensor(), output=tensor())}
    lonely = {"Distributed.send.7.forward": call(tensor(), {"type": "int", "value": 2})}
    for name in ("rank", "rank2", "proc5"):
        written(run / "step0" / name, relu, dict.fromkeys(relu))
    for name in ("rank0", "rank1"):
        shutil.copytree(runs / name, run / "step0" / name)
    written(run / "step0" / "rank3", lonely, dict.fromkeys(lonely))
    of_one_run(run)
    shown(capsys, "-tp", run, "-o", tmp_path / "out")
    page = page_in(tmp_path / "out")
    with_partners = {
        comparison for comparison in range(6) for detail in page.details(comparison) if detail.get("partners")
    }
    assert with_partners == {1, 2}
    notes = [each["notes"] for each in page.manifest["comparisons"]]
    assert [any("Distributed.send.7.forward of rank 3" in note for note in each) for each in notes] == [
        False, False, False, False, True, False,
    ]  # fmt: skip


def test_a_rank_that_gets_the_difference_from_a_later_one_follows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 makes the fault, and rank 0, which comes before it, gets it by an all_reduce."""
    for side, factor in (("target", 1.5), ("golden", 1.0)):
        for rank in range(2):
            made = factor if rank == 1 else 1.0
            records = {
                "Functional.relu.0.forward": call(tensor(1.0), output=tensor(made)),
                "Distributed.all_reduce.0.forward": call(tensor(made), output=tensor(1.0 + factor)),
                "Functional.relu.1.forward": call(tensor(1.0 + factor), output=tensor(1.0 + factor)),
            }
            written(tmp_path / side / "step0" / f"rank{rank}", records, dict.fromkeys(records))
    shown(capsys, "-tp", tmp_path / "target", "-gp", tmp_path / "golden", "-o", tmp_path / "out")

    manifest = page_in(tmp_path / "out").manifest
    assert [(each["rank"], each["follows"]) for each in manifest["comparisons"]] == [(0, True), (1, False)]
    assert manifest["first"] == 1 and manifest["comparisons"][1]["first_name"] == "Functional.relu.0.forward"
