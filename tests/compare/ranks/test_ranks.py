"""Several ranks: where they diverge first, and msprobe merge_result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from command_line import compare
from made_dumps import constant, plain, write

from probe.api import cli
from probe.compare import tables as table_files
from probe.compare.first_difference import analyse

# --- where several ranks diverge first, on runs made up so that the answer is known

SIN, COS = "Torch.sin.0.forward", "Torch.cos.0.forward"
REDUCE, SEND, RECEIVE = "Distributed.all_reduce.0.forward", "Distributed.send.0.forward", "Distributed.recv.0.forward"


def call(value: float, **arguments: int) -> dict[str, Any]:
    kwargs = {name: plain(number) for name, number in arguments.items()}
    return made_dumps.call([constant()], [constant(value)], kwargs)


def parts_at(folder: Path, *ranks: dict[str, dict[str, Any]]) -> dict[int, str]:
    """The first differences when `ranks` are held against the same calls with outputs of 1."""
    for number, data in enumerate(ranks):
        write(folder / "target" / f"rank{number}", data)
        golden = {name: {**record, "output": [constant()]} for name, record in data.items()}
        write(folder / "golden" / f"rank{number}", golden)
    (found,) = analyse(str(folder / "target"), str(folder / "golden"), str(folder / "out"))
    assert len(found.files) == len(ranks) + bool(found.found)
    return {rank.number: record.name for rank, record in found.found}


CLEAN = {SIN: call(1), REDUCE: call(9), COS: call(9)}
SENDER = {REDUCE: call(1), SIN: call(9), SEND: call(9, dst=0)}
RECEIVER = {REDUCE: call(1), RECEIVE: call(9, src=1), COS: call(9)}


@pytest.mark.parametrize(("ranks", "expected"), [
    ((CLEAN, {**CLEAN, SIN: call(2)}), {1: SIN}),
    ((RECEIVER, SENDER), {1: SIN}),
    ((CLEAN, CLEAN), {0: REDUCE, 1: REDUCE}),
    (({REDUCE: call(1), COS: call(9)}, {REDUCE: call(1), COS: call(1)}), {0: COS}),
    (({"Torch.empty.0.forward": call(9), SIN: call(1)},), {}),
], ids=["before any communication", "sender", "communication", "after the last", "not computed"])  # fmt: skip
def test_the_first_differences_are_those_that_no_other_rank_explains(
    tmp_path: Path, ranks: Any, expected: dict[int, str]
) -> None:
    assert parts_at(tmp_path, *ranks) == expected


def test_equal_ranks_give_no_analysis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parts_at(tmp_path, {SIN: call(1), REDUCE: call(1.4)}) == {}
    arguments = ["-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden"), "-o", str(tmp_path / "more"), "-da"]
    assert cli.main(["compare", *arguments, "--fail-on", "error"]) == 0
    assert "no rank differs" in capsys.readouterr().out


def test_two_files_are_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # D8
    write(tmp_path / "a", {SIN: call(9)})
    write(tmp_path / "b", {SIN: call(1)})
    paths = [str(tmp_path / side / "dump.json") for side in "ab"]
    arguments = ["compare", "-tp", paths[0], "-gp", paths[1], "-o", str(tmp_path / "out"), "-da"]
    assert cli.main([*arguments, "--fail-on", "error"]) == 1
    assert f"rank 0 diverges first at {SIN}" in capsys.readouterr().out
    (analysis,) = (tmp_path / "out").glob("diff_analyze_*.json")
    assert json.loads(analysis.read_text())["rank_0"][0]["op_name"] == SIN


def test_dumps_without_a_common_record_do_not_tell_whether_they_diverge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, theirs in (("rank0", SIN), ("rank1", COS)):
        write(tmp_path / "target" / rank, {SIN: call(1)})
        write(tmp_path / "golden" / rank, {theirs: call(1)})
    sides = [str(tmp_path / name) for name in ("target", "golden", "out")]
    arguments = ["compare", "-tp", sides[0], "-gp", sides[1], "-o", sides[2]]
    for more in ([], ["-da"]):
        assert cli.main([*arguments, *more, "--fail-on", "divergence"]) == 2
        said = capsys.readouterr()
        assert "cannot be told whether the runs diverge: " in said.err and "no record of one dump" in said.out
    assert "no rank differs" not in said.out
    assert cli.main([*arguments, "-da"]) == 0
    write(tmp_path / "target" / "rank0", {SIN: call(9)})
    assert cli.main([*arguments, "-da", "--fail-on", "divergence"]) == 1


def test_a_divergence_too_small_to_be_looked_for_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parts_at(tmp_path, {SIN: call(1.4)}) == {}
    arguments = ["-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden"), "-o", str(tmp_path / "more"), "-da"]
    assert cli.main(["compare", *arguments, "--fail-on", "divergence"]) == 1
    assert f"no rank differs by half; first divergence: {SIN}" in capsys.readouterr().out


# --- ``msprobe merge_result``: metrics of communication over all ranks in one workbook

STEP = Path(__file__).parents[1] / "cases" / "multi_rank"
openpyxl = pytest.importorskip("openpyxl")
Sheets = dict[str, list[tuple[object, ...]]]


def tables(folder: Path, *more: str) -> Path:
    """The tables of two ranks."""
    assert compare(STEP / "target" / "step0", STEP / "golden" / "step0", folder, *more) == 0
    return folder


def in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> Path:
    """Tables in parts of so few rows that every record is in another."""
    monkeypatch.setattr(table_files, "CSV_ROWS", 3)
    monkeypatch.setattr(table_files, "SHEET_ROWS", 3)
    return tables(folder, *more)


def merge(folder: Path, config: str = "api: [Distributed]") -> int:
    file = folder.parent / "config.yaml"
    file.write_text(config)
    return cli.main(["merge_result", "-i", str(folder), "-o", str(folder.parent / "out"), "-config", str(file)])


def merged(folder: Path, config: str = "api: [Distributed]") -> Sheets:
    """Every sheet of what is merged."""
    assert merge(folder, config) == 0
    (path,) = (folder.parent / "out").glob("multi_ranks_compare_merge_*.xlsx")
    sheets = {sheet.title: list(sheet.iter_rows(values_only=True)) for sheet in openpyxl.load_workbook(path).worksheets}
    path.unlink()
    return sheets


@pytest.mark.parametrize("more", [(), ("--xlsx",)])
def test_communication_is_collected_over_ranks(tmp_path: Path, more: tuple[str, ...]) -> None:  # D11
    config = "api: [Distributed.all_reduce, Distributed.send]\ncompare_index: [Max diff, NormRelativeErr]"
    found = merged(tables(tmp_path / "tables", *more), config)
    assert list(found) == ["Max diff", "NormRelativeErr"]
    rows = {row[0]: row[1:] for row in found["Max diff"]}
    assert rows["NPU Name"] == ("rank0", "rank1")
    assert rows["Distributed.all_reduce.0.forward.output.0"] == pytest.approx((0.17459356784820557,) * 2)
    assert rows["Distributed.send.0.forward.input.0"][1] is None
    errors = {row[0]: row[1] for row in found["NormRelativeErr"]}
    assert str(errors["Distributed.all_reduce.0.forward.output.0"]).endswith("%")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("api: []", '"api" is a list of 0'),
        ("compare_index: [a]", '"api" is null'),
        ("api: [Distributed.all_reduce]\ncompare_index: [Maximum]", "'Maximum', which is not a column"),
        ("api: [Distributed.nothing]", "no table has a row"),
        ("api: [", "not valid YAML"),
    ],
)
def test_a_wrong_choice_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, said: str) -> None:
    folder = tables(tmp_path / "tables")
    capsys.readouterr()
    assert merge(folder, config) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(("content", "said"), [
    (b"", "cannot be read as a workbook"), (b"PK\x03\x04 and no more", "cannot be read as a workbook"),
    (None, "tables of 1 ranks"),
])  # fmt: skip
def test_a_damaged_or_missing_table_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    folder = tables(tmp_path / "tables", "--xlsx")
    table = next(folder.glob("*rank1*"))
    table.unlink()
    if content is not None:
        table.write_bytes(content)
    capsys.readouterr()
    assert merge(folder) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("more", [(), ("--xlsx",)])
def test_every_part_of_the_newest_table_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    expected = merged(tables(tmp_path / "whole"))
    folder = in_parts(tmp_path / "tables", monkeypatch, *more)
    for rank in "01":
        (folder / f"compare_result_rank{rank}_20000101000000.csv").write_text("of no use any more")
    found = merged(folder)
    assert found == expected and len(next(iter(found.values()))) > 2
    if not more:
        next(folder.glob("*rank1*_part_2.csv")).unlink()
        capsys.readouterr()
        assert merge(folder) == 2
        error = capsys.readouterr().err
        assert "is one part of a table, and part 2 is missing" in error and error.count("\n") == 1
