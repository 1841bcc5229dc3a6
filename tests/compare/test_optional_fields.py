"""What only some dumps say of a tensor or a call changes nothing in a comparison."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from made_dumps import call, constant

from probe.api import cli

CALL = "Distributed.all_reduce.0.forward"


def write(folder: Path, entry: dict[str, Any], **more: Any) -> str:
    return str(made_dumps.write(folder, {CALL: call([entry], [entry], **more)}) / "dump.json")


@pytest.mark.parametrize("counted_side", ["target", "golden"])
def test_counts_and_waits_are_not_compared(tmp_path: Path, counted_side: str) -> None:
    counted = constant(math.nan, **{"Nonfinite": 2, "Finite Max": 3.5, "Finite Min": None})
    with_more = write(tmp_path / "counted", counted, waited_after="Torch.abs.0.forward")
    without = write(tmp_path / "plain", constant(math.nan))
    target, golden = (with_more, without) if counted_side == "target" else (without, with_more)
    arguments = ["compare", "-tp", target, "-gp", golden, "-o", str(tmp_path / "out")]
    assert cli.main([*arguments, "--fail-on", "warning"]) == cli.main(
        [arguments[0], "-tp", without, "-gp", without, "-o", str(tmp_path / "same"), "--fail-on", "warning"]
    )
    (mixed,), (plain,) = (list((tmp_path / name).glob("*.csv")) for name in ("out", "same"))
    assert mixed.read_text() == plain.read_text()
