"""Where several ranks diverge first, on runs made up so that the answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from made_dumps import constant, plain, write

from probe.api import cli
from probe.common.collectives.collectives import CollectiveCall, is_communication
from probe.common.collectives.event_graph import layers
from probe.common.dump.reading.records import Item
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


def test_what_differs_before_any_communication_is_the_cause(tmp_path: Path) -> None:
    clean = {SIN: call(1), REDUCE: call(9), COS: call(9)}
    assert parts_at(tmp_path, clean, {SIN: call(2), REDUCE: call(9), COS: call(9)}) == {1: SIN}


def test_a_receiver_is_not_the_cause(tmp_path: Path) -> None:
    sender = {REDUCE: call(1), SIN: call(9), SEND: call(9, dst=1)}
    receiver = {REDUCE: call(1), RECEIVE: call(9, src=0), COS: call(9)}
    assert parts_at(tmp_path, receiver | {RECEIVE: call(9, src=1)}, sender | {SEND: call(9, dst=0)}) == {1: SIN}


def test_a_communication_whose_ranks_agree_before_it_is_the_cause(tmp_path: Path) -> None:
    rank = {SIN: call(1), REDUCE: call(9), COS: call(9)}
    assert parts_at(tmp_path, rank, rank) == {0: REDUCE, 1: REDUCE}


def test_what_differs_after_the_last_communication_is_found_too(tmp_path: Path) -> None:
    assert parts_at(tmp_path, {REDUCE: call(1), COS: call(9)}, {REDUCE: call(1), COS: call(1)}) == {0: COS}


def test_equal_ranks_give_no_analysis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parts_at(tmp_path, {SIN: call(1), REDUCE: call(1.4)}) == {}
    arguments = ["-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden"), "-o", str(tmp_path / "more"), "-da"]
    assert cli.main(["compare", *arguments, "--fail-on", "error"]) == 0
    assert "no rank differs" in capsys.readouterr().out


def test_what_is_not_computed_does_not_count(tmp_path: Path) -> None:
    assert parts_at(tmp_path, {"Torch.empty.0.forward": call(9), SIN: call(1)}) == {}


def test_two_files_are_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # D8
    write(tmp_path / "a", {SIN: call(9)})
    write(tmp_path / "b", {SIN: call(1)})
    paths = [str(tmp_path / side / "dump.json") for side in "ab"]
    arguments = ["compare", "-tp", paths[0], "-gp", paths[1], "-o", str(tmp_path / "out"), "-da"]
    assert cli.main([*arguments, "--fail-on", "error"]) == 1
    assert f"rank 0 diverges first at {SIN}" in capsys.readouterr().out
    (analysis,) = (tmp_path / "out").glob("diff_analyze_*.json")
    assert json.loads(analysis.read_text())["rank_0"][0]["op_name"] == SIN


def peer(name: str, rank: int) -> Item:
    return Item(f"Distributed.x.0.forward.input.{name}", "input", "int", (), value=str(rank))


def test_sends_and_receives_are_linked_by_peer_and_order() -> None:
    first = [CollectiveCall(0, n, f"Distributed.send.{n}.forward", (peer("dst", 1),)) for n in range(2)]
    second = [CollectiveCall(1, n, f"Distributed.irecv.{n}.forward", (peer("1", 0),)) for n in range(2)]
    assert layers([first, second], [0, 1]) == [[[first[0], second[0]]], [[first[1], second[1]]]]


def test_groups_of_ranks_are_linked_apart() -> None:
    def reduce(rank: int, group: str) -> CollectiveCall:
        item = Item("Distributed.all_reduce.0.forward.input.group", "input", "torch.ProcessGroup", "[]", value=group)
        return CollectiveCall(rank, 0, "Distributed.all_reduce.0.forward", (item,))

    calls = [reduce(0, "[0, 1]"), reduce(1, "[0, 1]"), reduce(2, "[2, 3]"), reduce(3, "[2, 3]")]
    assert layers([[call] for call in calls], range(4)) == [[calls[:2], calls[2:]]]


def test_ranks_that_contradict_each_other_come_to_an_end() -> None:
    def named(rank: int, *names: str) -> list[CollectiveCall]:
        return [CollectiveCall(rank, n, f"Distributed.{name}.0.forward", ()) for n, name in enumerate(names)]

    calls = [named(0, "broadcast", "all_reduce"), named(1, "all_reduce", "broadcast")]
    found = layers(calls, [0, 1])
    assert sorted(call.record for layer in found for link in layer for call in link) == sorted(
        call.record for of_rank in calls for call in of_rank
    )


@pytest.mark.parametrize(
    ("record", "expected"),
    [(REDUCE, True), ("MintDistributed.all_gather.1.forward", True), (SIN, False), ("Torch.gather.0.forward", False)],
)
def test_communication_is_recognised_by_prefix_and_name(record: str, expected: bool) -> None:
    assert is_communication(record) is expected


def test_dumps_without_a_common_record_do_not_tell_whether_they_diverge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, theirs in (("rank0", SIN), ("rank1", COS)):
        write(tmp_path / "target" / rank, {SIN: call(1)})
        write(tmp_path / "golden" / rank, {theirs: call(1)})
    arguments = [
        "compare",
        "-tp",
        str(tmp_path / "target"),
        "-gp",
        str(tmp_path / "golden"),
        "-o",
        str(tmp_path / "out"),
    ]
    for more in ([], ["-da"]):
        assert cli.main([*arguments, *more, "--fail-on", "divergence"]) == 2
        said = capsys.readouterr()
        assert "cannot be told whether the runs diverge: " in said.err and "no record of one dump" in said.out
    assert "no rank differs" not in said.out
    assert cli.main([*arguments, "-da"]) == 0
    write(tmp_path / "target" / "rank0", {SIN: call(9)})
    assert cli.main([*arguments, "-da", "--fail-on", "divergence"]) == 1


@pytest.mark.parametrize("level", ["divergence", "error"])
def test_nothing_to_compare_is_trouble_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    for side, function in (("cosines", "cos"), ("tangents", "tan")):
        others = {f"Torch.{function}.{number}.forward": call(1) for number in range(9)}
        write(tmp_path / side, {**others, SIN: call(1)})
    write(tmp_path / "others", {"Torch.exp.0.forward": call(1)})
    for golden in ("tangents", "others"):
        paths = ["-tp", str(tmp_path / "cosines"), "-gp", str(tmp_path / golden), "-o", str(tmp_path / "out")]
        for more in ([], ["-da"]):
            assert cli.main(["compare", *paths, *more, "--fail-on", level]) == 2
            assert "cannot be told whether " in capsys.readouterr().err
            assert cli.main(["compare", *paths, *more]) == 0


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
