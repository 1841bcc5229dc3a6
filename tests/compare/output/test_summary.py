"""The summary, its JSON, and the exit statuses of ``msprobe compare``."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import command_line
import pytest
from made_dumps import call, constant, write

from probe.api.commands.question import print_lines
from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.output import summary_text
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
    print_lines(summary_text.styled_lines([summary]), coloured)
    print_lines(summary_text.styled_lines([summary]), plain)
    assert "\x1b[" in coloured.getvalue() and "\x1b[" not in plain.getvalue()
    assert plain.getvalue().splitlines()[1] in coloured.getvalue()
