"""``msprobe merge_result``: metrics of communication over all ranks in one workbook."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import compare

from probe.api import cli
from probe.compare.output import table_files

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


def test_a_metric_whose_name_no_sheet_may_have_is_merged(tmp_path: Path) -> None:
    for table in tables(tmp_path / "tables").iterdir():
        table.write_text(table.read_text().replace("Min diff", "Min [a/b]", 1))
    config = "{api: [Distributed.all_reduce], compare_index: ['Min [a/b]']}"
    assert list(merged(tmp_path / "tables", config)) == ["Min _a_b_"]


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
