"""A damaged or missing construct.json of a comparison: one error that names the calls, and one line on what is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, tensor, write

from probe.api.cli import main

NAMES = [f"Module.m{number}.C.forward.0" for number in range(5)]


def dump(folder: Path, tree: dict[str, str | None] | None) -> str:
    records: dict[str, Any] = {name: call([tensor()], [tensor()]) for name in NAMES}
    return str(write(folder, records, tree))


def circle(length: int) -> dict[str, str | None]:
    """The first calls are inside of each other, and the others below the last of these."""
    return {name: NAMES[(at + 1) % length if at < length else length - 1] for at, name in enumerate(NAMES)}


@pytest.mark.parametrize("command", ["compare", "graph_visualize"])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("is_golden", [True, False])
def test_a_circle_is_one_error_that_names_the_file_and_the_calls(
    command: str, length: int, is_golden: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree: dict[str, str | None] = dict.fromkeys(NAMES)
    sides = [dump(tmp_path / side, tree) for side in ("target", "golden")]
    damaged = Path(sides[is_golden]) / "construct.json"
    damaged.write_text(json.dumps(circle(length)), encoding="utf-8")
    assert main([command, "-tp", sides[0], "-gp", sides[1], "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    lines = [line for line in (said.out + said.err).splitlines() if "is inside of" in line]
    assert len(lines) == 1 and str(damaged) in lines[0]
    assert all(name in lines[0] for name in NAMES[: min(length, 3)])


@pytest.mark.parametrize("missing, expected", [
    ("target", "the target has no construct.json"), ("golden", "the golden run has no construct.json"),
    ("both", "both runs have no construct.json"), ("", ""),
])  # fmt: skip
def test_a_missing_tree_is_said_once(
    missing: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree: dict[str, str | None] = dict.fromkeys(NAMES)
    sides = [dump(tmp_path / side, None if missing in (side, "both") else tree) for side in ("target", "golden")]
    assert main(["compare", "-tp", sides[0], "-gp", sides[1], "-o", str(tmp_path / "out")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "construct.json" in line]
    assert len(lines) == (1 if expected else 0)
    assert all(expected in line and "without the tree of modules" in line for line in lines)
