"""Where several ranks diverge first, on runs made up so that the answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from made_dumps import constant, plain, write

from probe.api import cli
from probe.compare.ranks.analysis import analyse

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


def test_saved_values_that_differ_do_not_tell_the_ranks_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = Path(__file__).parents[1] / "cases" / "debug_save"
    arguments = ["compare", "-tp", str(saved / "target"), "-gp", str(saved / "golden"), "-o", str(tmp_path), "-da"]
    assert cli.main([*arguments, "--fail-on", "divergence"]) == 2
    assert "cannot be told whether the runs diverge: saved values differ" in capsys.readouterr().err


def test_a_divergence_too_small_to_be_looked_for_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parts_at(tmp_path, {SIN: call(1.4)}) == {}
    arguments = ["-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden"), "-o", str(tmp_path / "more"), "-da"]
    assert cli.main(["compare", *arguments, "--fail-on", "divergence"]) == 1
    assert f"no rank differs by half; first divergence: {SIN}" in capsys.readouterr().out
