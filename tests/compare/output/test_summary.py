"""The summary, its JSON, what it says of the data, and the exit statuses of msprobe compare."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import command_line
import made_dumps
import pytest
from made_dumps import call, plain, tensor, written

from probe.api.commands.question import print_lines
from probe.common.dump.reading.dump import read
from probe.common.environment.environment_file import write
from probe.compare import summary_text
from probe.compare.comparison import compare_dumps
from probe.compare.summary import SUSPECTS, Summary, outside_of, summarise

# --- the summary, its JSON, and the exit statuses of ``msprobe compare``

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


# --- what ``msprobe compare --json`` holds

CALLS = 10
APART = 1e-14
Data = dict[str, Any]


def whole(norm: float, dtype: str = "torch.float64") -> Data:
    return made_dumps.tensor(norm, -norm, norm=norm, shape=(4,), dtype=dtype)


def run_of(apart: float, argument: float = 1.0, names: str = "mul") -> Data:
    """Calls that do not take what others return; how far off each is, no call before explains."""
    data: Data = {}
    for number in range(CALLS):
        inputs = [whole(number + 1.0), plain(argument)]
        output = [whole((number + 1.0) * (1 + apart * 20**number))]
        data[f"Torch.{names}.{number}.forward"] = call(inputs, output)
    return data


def summary_of(folder: Path, target: Data, golden: Data) -> Summary:
    sides = written(folder / "target", target, level="L1"), written(folder / "golden", golden, level="L1")
    return summarise(compare_dumps(*sides))


def test_every_call_that_diverges_is_there_and_the_text_names_some(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, run_of(APART), run_of(0.0))
    found = json.loads(json.dumps(summary.as_json()))["divergence"]
    records = [call["record"] for call in (found["first"], *found["suspects"])]
    assert records == [f"Torch.mul.{number}.forward" for number in range(CALLS)]
    (line,) = (text for text, _ in summary_text.headline([summary]) if text.startswith("  later: "))
    assert line.count("Torch.mul") == SUSPECTS < CALLS


def test_differences_are_listed_with_and_without_effect(tmp_path: Path) -> None:
    reason = "input.1 is 2.0 and in the golden run 1.0"
    for apart, key, other in ((APART, "with_effect", "without_effect"), (0.0, "without_effect", "with_effect")):
        found = summary_of(tmp_path / key, run_of(apart, 2.0), run_of(0.0)).as_json()
        assert [difference["reason"] for difference in found[key]] == [reason] * CALLS
        assert found[other] == []


def test_how_calls_were_paired_is_told(tmp_path: Path) -> None:
    found = summary_of(tmp_path, {**run_of(0.0, names="sin"), **run_of(0.0)}, run_of(0.0)).as_json()
    assert found["pairing"] == {
        "by": "names",
        "same_name": CALLS,
        "other_name": 0,
        "renamed": {},
        "target_only": [f"Torch.sin.{number}.forward" for number in range(CALLS)],
        "golden_only": [],
    }
    assert (found["coverage"]["compared_records"], found["coverage"]["records"]) == (2 * CALLS, 3 * CALLS)


# --- what is said of the data of two runs: the batch of the first call, and no gradient


@pytest.mark.parametrize(
    ("dtype", "by", "expected"),
    [
        ("torch.int64", 1.0, "its statistics agree, so it may have the same elements in another order"),
        ("torch.float32", 1.0, "may have the same elements in another order, or differ by rounding"),
        ("torch.float32", 1 + 1e-6, "differs by rounding, or has the same elements in another order"),
        ("torch.float32", 1.02, "other data, or another order of the data"),
    ],
)
def test_a_batch_with_other_checksums_may_differ_by_rounding(
    dtype: str, by: float, expected: str, tmp_path: Path
) -> None:
    dumps = []
    for side, factor, md5 in (("target", by, "00000001"), ("golden", 1.0, "00000002")):
        given = tensor(2.0 * factor, -1.0 * factor, 0.1 * factor, 3.0 * factor, (4, 8), dtype, md5=md5)
        name = "Module.conv.Conv2d.forward.0"
        dumps.append(written(tmp_path / side / "step0" / "rank0", {name: call([given], [given])}, {name: None}))
        write(str(tmp_path / side), "rank0", {"framework": "pytorch"})
    (found,) = outside_of(compare_dumps(*dumps))
    assert expected in found.text
