"""Which records are decoded: none twice, and none that both sides have in the same words twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made_dumps import constant, written

from probe.common.align.row import Row
from probe.compare.comparison import compare_dumps


def rows(folder: Path, target: dict[str, Any], golden: dict[str, Any]) -> list[Row]:
    return compare_dumps(written(folder / "target", target), written(folder / "golden", golden)).rows


def test_records_in_the_same_words_are_decoded_once(tmp_path: Path) -> None:
    sin = {"input_args": [constant(1.0)], "output": [constant(0.8)]}
    cos = {"input_args": [constant(1.0)], "output": [constant(0.5)]}
    target = {"Torch.sin.0.forward": sin, "Torch.cos.0.forward": cos}
    golden = {"Torch.sin.0.forward": sin, "Torch.cos.0.forward": {**cos, "output": [constant(0.6)]}}
    found = rows(tmp_path, target, golden)
    assert [row.target is row.golden for row in found] == [True, True, False, False]
    assert [row.metrics[3] for row in found] == [0, 0, 0, 0.5 - 0.6]


def test_the_same_words_under_another_name_are_other_items(tmp_path: Path) -> None:
    call = {"input": [constant(1.0)]}
    (row,) = rows(tmp_path, {"Torch.sin.3.backward": call}, {"Torch.sin.0.backward": call})
    assert row.target is not None and row.golden is not None
    assert (row.target.name, row.golden.name) == ("Torch.sin.3.backward.input.0", "Torch.sin.0.backward.input.0")
