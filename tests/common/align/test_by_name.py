"""Which records are decoded: none twice, and none that both sides have in the same words twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import probe
from probe.common.align.row import Row
from probe.compare.comparison import compare_dumps


def tensor(norm: float) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": norm, "Norm": norm}


def rows(folder: Path, target: dict[str, Any], golden: dict[str, Any]) -> list[Row]:
    dumps = []
    for side, data in (("target", target), ("golden", golden)):
        path = folder / side / "dump.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"task": "statistics", "level": "L1", "framework": "pytorch", "data": data}))
        dumps.append(probe.read(path))
    return compare_dumps(*dumps).rows


def test_records_in_the_same_words_are_decoded_once(tmp_path: Path) -> None:
    sin = {"input_args": [tensor(1.0)], "output": [tensor(0.8)]}
    cos = {"input_args": [tensor(1.0)], "output": [tensor(0.5)]}
    target = {"Torch.sin.0.forward": sin, "Torch.cos.0.forward": cos}
    golden = {"Torch.sin.0.forward": sin, "Torch.cos.0.forward": {**cos, "output": [tensor(0.6)]}}
    found = rows(tmp_path, target, golden)
    assert [row.target is row.golden for row in found] == [True, True, False, False]
    assert [row.metrics[3] for row in found] == [0, 0, 0, 0.5 - 0.6]


def test_the_same_words_under_another_name_are_other_items(tmp_path: Path) -> None:
    call = {"input": [tensor(1.0)]}
    (row,) = rows(tmp_path, {"Torch.sin.3.backward": call}, {"Torch.sin.0.backward": call})
    assert row.target is not None and row.golden is not None
    assert (row.target.name, row.golden.name) == ("Torch.sin.3.backward.input.0", "Torch.sin.0.backward.input.0")
