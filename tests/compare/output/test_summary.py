"""The summary, its JSON, and the exit statuses of ``msprobe compare``; ``msprobe merge_result``."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import command_line
import pytest
from made_dumps import call, constant, write

from probe.api import cli
from probe.api.commands.comparing.compare import CompareAnswer
from probe.api.commands.question import print_lines
from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.output import summary_text, table_files
from probe.compare.output.summary import summarise

CASES = Path(__file__).parents[2] / "compare" / "cases"
STEP = CASES / "multi_rank"


def compare(case: str, out: Path, *more: str) -> int:
    return command_line.compare(CASES / case / "target", CASES / case / "golden", out, *more)


def ranks(out: Path, *more: str) -> int:
    return command_line.compare(STEP / "target" / "step0", STEP / "golden" / "step0", out, *more)


def test_the_first_lines_say_where_two_runs_diverge_and_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare("perturbed_weights_stat", tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    (table,) = tmp_path.iterdir()
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    differing = [row for row in rows if row["Max diff"] != "0" or row["L2norm diff"] != "0"]
    named = said[0].removeprefix("first divergence: ").split(", ")[-1]
    assert any(row["NPU Name"].startswith(named) for row in differing)
    assert any(re.fullmatch(r"  line:   \S+\.py:\d+ in \w+: .+", line) for line in said)
    counts = next(place for place, line in enumerate(said) if line.startswith(f"{len(rows)} rows by statistics: "))
    first = next(row for row in rows if row["Result"] == "error")
    # The answer is the message already.
    assert first["NPU Name"].startswith(said[counts + 1].removeprefix("  first error: "))
    assert json.loads(first["Err_message"])[0].startswith("error: The first divergence is here: ")
    assert counts < 10 and f"  table: {table}" in said


def test_what_has_no_match_is_counted_on_both_sides() -> None:
    case = CASES / "missing_apis_stat"
    result = compare_dumps(read(case / "target"), read(case / "golden"))
    summary = summarise(result)
    assert summary.target_only == sum(row.golden is None for row in result.rows) > 0
    target, golden = read(case / "golden"), read(case / "target")
    assert summarise(compare_dumps(target, golden)).golden_only == summary.target_only
    assert "unmatched: " in "\n".join(text for text, _ in summary_text.lines(summary))


def test_nan_that_both_runs_have_is_no_difference(tmp_path: Path) -> None:
    entry = constant(float("nan"))
    # In another order, so that they are not the same for being the same text.
    for side, of_tensor in (("target", entry), ("golden", dict(reversed(entry.items())))):
        write(tmp_path / side, {"Torch.sin.0.forward": call([of_tensor], [of_tensor])})
    summary = summarise(compare_dumps(read(tmp_path / "target"), read(tmp_path / "golden")))
    assert not summary.differs
    assert summary_text.headline([summary]) == [("no divergence: nothing differs", "pass")]


def test_the_first_records_without_match_are_named_on_both_sides() -> None:
    case = CASES / "missing_apis_stat"
    target, golden = read(case / "target"), read(case / "golden")
    result = compare_dumps(target, golden)
    summary = summarise(result)
    there = {row.golden_record for row in result.rows if row.target is not None}
    for unmatched, dump, met in (
        (summary.target_unmatched, target, {row.record for row in result.rows if row.golden and row.target}),
        (summary.golden_unmatched, golden, there),
    ):
        names = [record.name for record in dump if record.name not in met and dump.items(record)]
        assert unmatched.records == len(names) and unmatched.first == names[:3]
    text = "\n".join(text for text, _ in summary_text.lines(summary))
    assert all(name in text for name in summary.target_unmatched.first)


@pytest.mark.parametrize(
    ("case", "level", "status"),
    [
        ("identical_stat", "warning", 0),
        ("perturbed_weights_stat", "never", 0),
        ("perturbed_weights_stat", "error", 1),
        ("identical_stat", "divergence", 0),
        ("perturbed_weights_stat", "divergence", 1),
        ("multi_rank", "warning", 1),
    ],
)
def test_the_exit_status_can_say_that_runs_differ(tmp_path: Path, case: str, level: str, status: int) -> None:
    if case == "multi_rank":
        assert ranks(tmp_path, "--fail-on", level) == status
    else:
        assert compare(case, tmp_path, "--fail-on", level) == status


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ranks(tmp_path, "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["label"], second["label"], first["mode"]) == ("rank0", "rank1", "statistics")
    assert sum(second["counts"].values()) == second["rows"]
    assert second["suspects"][0]["stack"][0].startswith("File ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_and_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    case = CASES / "perturbed_weights_stat"
    summary = summarise(compare_dumps(read(case / "target"), read(case / "golden")))
    coloured, plain = Terminal(), io.StringIO()
    found = CompareAnswer([summary], found=True, seconds=0.5)
    print_lines(found.lines(), coloured)
    print_lines(found.lines(), plain)
    assert "\x1b[" in coloured.getvalue() and "\x1b[" not in plain.getvalue()
    assert plain.getvalue().splitlines()[1] in coloured.getvalue()


@pytest.mark.parametrize("more", [(), ("--xlsx",)])
def test_communication_is_collected_over_ranks(tmp_path: Path, more: tuple[str, ...]) -> None:  # D11
    openpyxl = pytest.importorskip("openpyxl")
    assert ranks(tmp_path / "tables", *more) == 0
    config = tmp_path / "config.yaml"
    config.write_text("api: [Distributed.all_reduce, Distributed.send]\ncompare_index: [Max diff, NormRelativeErr]")
    arguments = ["merge_result", "-i", str(tmp_path / "tables"), "-o", str(tmp_path / "out"), "-config", str(config)]
    assert cli.main(arguments) == 0
    (path,) = (tmp_path / "out").glob("multi_ranks_compare_merge_*.xlsx")
    book = openpyxl.load_workbook(path)
    assert book.sheetnames == ["Max diff", "NormRelativeErr"]
    rows = {row[0]: row[1:] for row in book["Max diff"].iter_rows(values_only=True)}
    assert rows["NPU Name"] == ("rank0", "rank1")
    assert rows["Distributed.all_reduce.0.forward.output.0"] == pytest.approx((0.17459356784820557,) * 2)
    assert rows["Distributed.send.0.forward.input.0"][1] is None
    errors = {row[0]: row[1] for row in book["NormRelativeErr"].iter_rows(values_only=True)}
    assert errors["Distributed.all_reduce.0.forward.output.0"].endswith("%")


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
    ranks(tmp_path / "tables")
    (tmp_path / "config.yaml").write_text(config)
    paths = [str(tmp_path / name) for name in ("tables", "out", "config.yaml")]
    capsys.readouterr()
    assert cli.main(["merge_result", "-i", paths[0], "-o", paths[1], "-config", paths[2]]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more"])
def test_a_damaged_workbook_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    pytest.importorskip("openpyxl")
    ranks(tmp_path / "tables", "--xlsx")
    damaged = next((tmp_path / "tables").glob("*rank1*"))
    damaged.write_bytes(content)
    (tmp_path / "config.yaml").write_text("api: [Distributed]")
    capsys.readouterr()
    arguments = ["merge_result", "-i", str(tmp_path / "tables"), "-o", str(tmp_path / "out")]
    assert cli.main([*arguments, "-config", str(tmp_path / "config.yaml")]) == 2
    error = capsys.readouterr().err
    assert f"{damaged}: cannot be read as a workbook" in error and error.count("\n") == 1


def test_a_metric_whose_name_no_sheet_may_have_is_merged(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    ranks(tmp_path / "tables")
    for table in (tmp_path / "tables").iterdir():
        table.write_text(table.read_text().replace("Min diff", "Min [a/b]", 1))
    (tmp_path / "config.yaml").write_text("{api: [Distributed.all_reduce], compare_index: ['Min [a/b]']}")
    arguments = ["merge_result", "-i", str(tmp_path / "tables"), "-o", str(tmp_path / "out")]
    assert cli.main([*arguments, "-config", str(tmp_path / "config.yaml")]) == 0
    (path,) = (tmp_path / "out").iterdir()
    assert openpyxl.load_workbook(path).sheetnames == ["Min _a_b_"]


def merged(tmp_path: Path) -> list[list[tuple[object, ...]]]:
    """Every sheet of what is merged of ``tables``."""
    openpyxl = pytest.importorskip("openpyxl")
    (tmp_path / "config.yaml").write_text("api: [Distributed]")
    arguments = ["merge_result", "-i", str(tmp_path / "tables"), "-o", str(tmp_path / "out")]
    assert cli.main([*arguments, "-config", str(tmp_path / "config.yaml")]) == 0
    (path,) = (tmp_path / "out").iterdir()
    sheets = [list(sheet.iter_rows(values_only=True)) for sheet in openpyxl.load_workbook(path).worksheets]
    path.unlink()
    return sheets


def in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """Tables in parts of so few rows that every record is in another."""
    monkeypatch.setattr(table_files, "CSV_ROWS", 3)
    monkeypatch.setattr(table_files, "SHEET_ROWS", 3)
    assert ranks(folder, *more) == 0


@pytest.mark.parametrize("more", [(), ("--xlsx",)])
def test_every_part_of_a_table_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    assert ranks(tmp_path / "tables") == 0
    expected = merged(tmp_path)
    for table in (tmp_path / "tables").iterdir():
        table.unlink()
    in_parts(tmp_path / "tables", monkeypatch, *more)
    if not more:
        assert len(list((tmp_path / "tables").glob("*rank0*_part_*.csv"))) > 10
    assert merged(tmp_path) == expected and len(expected[0]) > 2


def test_a_table_whose_part_is_missing_is_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_parts(tmp_path / "tables", monkeypatch)
    next((tmp_path / "tables").glob("*rank1*_part_2.csv")).unlink()
    (tmp_path / "config.yaml").write_text("api: [Distributed]")
    capsys.readouterr()
    arguments = ["merge_result", "-i", str(tmp_path / "tables"), "-o", str(tmp_path / "out")]
    assert cli.main([*arguments, "-config", str(tmp_path / "config.yaml")]) == 2
    error = capsys.readouterr().err
    assert "is one part of a table, and part 2 is missing" in error and "rank1" in error and error.count("\n") == 1


def test_the_newest_table_of_a_rank_is_merged_whether_in_parts_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts(tmp_path / "tables", monkeypatch)
    expected = merged(tmp_path)
    for part in sorted((tmp_path / "tables").glob("*_part_1.csv")):
        rank = part.name.split("_")[2]
        (tmp_path / "tables" / f"compare_result_{rank}_20000101000000.csv").write_text("of no use any more")
    assert merged(tmp_path) == expected


def test_tables_of_one_rank_are_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks(tmp_path / "tables")
    next((tmp_path / "tables").glob("*rank1*")).unlink()
    (tmp_path / "config.yaml").write_text("api: [Distributed]")
    arguments = ["merge_result", "-i", str(tmp_path / "tables"), "-o", str(tmp_path)]
    assert cli.main([*arguments, "-config", str(tmp_path / "config.yaml")]) == 2
    assert "tables of 1 ranks" in capsys.readouterr().err
