"""What only some dumps say of a tensor or a call changes nothing in a comparison."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from probe.api import cli

CALL = "Distributed.all_reduce.0.forward"


def tensor(**more: Any) -> dict[str, Any]:
    statistics = {"Max": math.nan, "Min": math.nan, "Mean": math.nan, "Norm": math.nan, **more}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], **statistics, "requires_grad": False}


def write(folder: Path, entry: dict[str, Any], **more: Any) -> str:
    folder.mkdir()
    data = {CALL: {"input_args": [entry], "input_kwargs": {}, "output": [entry], **more}}
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**head, "data": data}))
    return str(folder / "dump.json")


@pytest.mark.parametrize("counted_side", ["target", "golden"])
def test_counts_and_waits_are_not_compared(tmp_path: Path, counted_side: str) -> None:
    counted = tensor(**{"Nonfinite": 2, "Finite Max": 3.5, "Finite Min": None})
    with_more = write(tmp_path / "counted", counted, waited_after="Torch.abs.0.forward")
    without = write(tmp_path / "plain", tensor())
    target, golden = (with_more, without) if counted_side == "target" else (without, with_more)
    arguments = ["compare", "-tp", target, "-gp", golden, "-o", str(tmp_path / "out")]
    assert cli.main([*arguments, "--fail-on", "warning"]) == cli.main(
        [arguments[0], "-tp", without, "-gp", without, "-o", str(tmp_path / "same"), "--fail-on", "warning"]
    )
    (mixed,), (plain,) = (list((tmp_path / name).glob("*.csv")) for name in ("out", "same"))
    assert mixed.read_text() == plain.read_text()
