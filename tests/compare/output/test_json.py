"""What ``msprobe compare --json`` holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_dumps
from made_dumps import call, plain, written

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.output import summary_text
from probe.compare.output.summary import SUSPECTS, Summary, summarise

CASES = Path(__file__).parents[1] / "cases"
CALLS = 10
APART = 1e-14
Data = dict[str, Any]


def tensor(norm: float, dtype: str = "torch.float64") -> Data:
    return made_dumps.tensor(norm, -norm, norm=norm, shape=(4,), dtype=dtype)


def run_of(apart: float, argument: float = 1.0, names: str = "mul") -> Data:
    """Calls that do not take what others return; how far off each is, no call before explains."""
    data: Data = {}
    for number in range(CALLS):
        inputs = [tensor(number + 1.0), plain(argument)]
        output = [tensor((number + 1.0) * (1 + apart * 20**number))]
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


def test_calls_of_other_names_are_listed() -> None:
    folder = CASES / "cross_ms_pt"
    found = summarise(compare_dumps(read(folder / "target"), read(folder / "golden"))).as_json()["pairing"]
    assert found["by"] == "layers"
    assert found["renamed"]["Functional.sin.0.forward"] == "Torch.sin.0.forward"
    assert found["other_name"] == len(found["renamed"])
