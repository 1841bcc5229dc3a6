"""Dumps are data of strangers: odd numbers in them cost neither the answer nor the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, plain, tensor, write

from probe.overflow.find_overflow import find_overflow

NAN = float("nan")
FINE, BROKEN = tensor(), tensor(NAN, NAN)


@pytest.mark.parametrize(
    ("record", "inputs", "kwargs"),
    [
        ("Torch.log.0.forward", [tensor(10**300, 10**300)], {}),
        ("Torch.div.0.forward", [FINE, plain(10**300)], {}),
        ("Torch.pow.0.forward", [FINE, plain(float("inf"))], {}),
        ("Torch.pow.0.forward", [FINE, plain(NAN)], {}),
        ("Torch.matmul.0.forward", [tensor(3e38, 0.0, shape=[10**300, 10**300, 10**300])], {}),
        ("Torch.softmax.0.forward", [tensor(True, False)], {}),
        ("Torch.sqrt.0.forward", [tensor("much", "little")], {}),
        ("Distributed.all_gather.0.forward", [None, FINE], {"group": plain("9" * 5000)}),
    ],
)
def test_the_record_is_named(tmp_path: Path, record: str, inputs: list[Any], kwargs: dict[str, Any]) -> None:
    report = find_overflow(str(write(tmp_path / "step0" / "rank0", {record: call(inputs, [BROKEN], kwargs)})))
    assert [finding.record for finding in report.first] == [record]
    assert report.first[0].sentence


@pytest.mark.parametrize("peer", ["²", "9" * 5000, -3, None, [1]])
def test_a_peer_that_is_no_rank_is_none(tmp_path: Path, peer: Any) -> None:
    for rank in range(2):
        record = "Distributed.send.0.forward"
        write(tmp_path / "step0" / f"rank{rank}", {record: call([BROKEN], [BROKEN], {"dst": plain(peer, "int")})})
    report = find_overflow(str(tmp_path))
    assert {finding.rank for finding in report.first} == {0, 1}


def test_a_record_to_explain_that_is_in_no_dump_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "step0" / "rank0", {"Torch.log.0.forward": call([FINE], [BROKEN])})
    with pytest.raises(Exception, match=r"no dump has a record 'Torch.lgo.0.forward'; nearest names: Torch.log"):
        find_overflow(str(folder), "Torch.lgo.0.forward")


def test_a_module_whose_path_has_the_word_backward_is_no_backward(tmp_path: Path) -> None:
    """A language model that reads from the end: its input comes from the data, not from a loss."""
    record = "Module.lm.backward_lm.LSTM.forward.0"
    report = find_overflow(str(write(tmp_path / "step0" / "rank0", {record: call([BROKEN], [BROKEN])})))
    assert report.first[0].record == record
    assert "loss" not in report.first[0].sentence and "the data" in report.first[0].sentence


def test_a_damaged_file_of_makers_costs_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {"Torch.log.0.forward": call([FINE], [BROKEN]), "Torch.sum.0.forward": call([BROKEN], [BROKEN])}
    folder = write(tmp_path / "step0" / "rank0", data)
    (folder / "sketch.npz").write_bytes(b"no archive")
    report = find_overflow(str(folder))
    assert [finding.record for finding in report.first] == ["Torch.log.0.forward"]
    assert capsys.readouterr().err.count("sketch.npz is damaged") == 1
