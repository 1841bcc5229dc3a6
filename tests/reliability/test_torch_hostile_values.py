"""Damaged numbers, sizes and names in a dump: every command answers with one line, whatever it is asked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.api.cli import main

TENSOR: dict[str, Any] = {
    "type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 1.0, "Min": -1.0, "Mean": 0.1,
    "Norm": 1.5, "requires_grad": True,
}  # fmt: skip
HUGE, DIGITS = 10**400, 10**4199
NAME = "Functional.silu.0.forward"
CHANGES: dict[str, dict[str, Any]] = {
    "a size of 2**80": {"shape": [1 << 80, 3]},
    "sizes beyond all memory": {"shape": [1 << 62, 1 << 62]},
    "a negative size": {"shape": [-2, 3]},
    "a size that is text": {"shape": ["2"]},
    "a number that is text": {"Max": "abc"},
    "a number of 401 digits": {"Max": HUGE},
    "a number of 4200 digits": {"Min": DIGITS},
    "a whole number beyond int64": {"dtype": "torch.int64", "Max": 10**200, "Min": -(10**200)},
    "an infinity of whole numbers": {"dtype": "torch.int64", "Max": math.inf},
    "a count of 401 digits": {"Nonfinite": HUGE, "Finite Max": HUGE},
    "an unknown dtype": {"dtype": "torch.float33"},
}
VALUES: list[Any] = [
    {"type": "int", "value": HUGE}, {"type": "slice", "value": ["a", None, {}]}, {"type": "torch.dtype", "value": 5},
    {"type": "torch.device", "value": "moon:7"}, {"type": "torch.Size", "value": [1 << 80]}, "x" * 200_000,
]  # fmt: skip


def dump(folder: Path, first: Any, **head: Any) -> Path:
    place = folder / "step0" / "rank0"
    place.mkdir(parents=True)
    record = {"input_args": [first], "input_kwargs": {}, "output": [TENSOR]}
    content = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (place / "dump.json").write_text(json.dumps({**content, **head, "data": {NAME: record}}))
    (place / "stack.json").write_text("{}")
    (place / "construct.json").write_text("{}")
    return place


def cases() -> Iterator[Any]:
    for name, change in CHANGES.items():
        yield pytest.param({**TENSOR, **change}, {}, id=name)
    for value in VALUES:
        yield pytest.param(value, {}, id=str(value)[:40])
    for framework in ("jax", 5, None):
        yield pytest.param(TENSOR, {"framework": framework}, id=f"framework {framework}")


@pytest.mark.sampled(least=6, each=False)
@pytest.mark.parametrize(("first", "head"), list(cases()))
def test_each_command_answers_in_lines(
    tmp_path: Path, first: Any, head: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    place, sound, out = dump(tmp_path / "a", first, **head), dump(tmp_path / "b", TENSOR), str(tmp_path / "out")
    damaged, good = str(place / "dump.json"), str(sound / "dump.json")
    statuses = {}
    for command in (
        ("show", str(place)), ("compare", "-tp", damaged, "-gp", good, "-o", out), ("recover", str(place)),
        ("compare", "-tp", good, "-gp", damaged, "-o", out), ("overflow_check", "-i", str(tmp_path / "a"), "-o", out),
        ("graph_visualize", "-tp", str(place), "-gp", str(sound), "-o", out),
        ("acc_check", "-api_info", damaged, "-o", out), ("replay", damaged, NAME),
    ):  # fmt: skip
        statuses[command[0]] = main(list(command))
        told = "".join(capsys.readouterr())
        assert "Traceback" not in told and "msprobe failed" not in told and "error of msprobe" not in told, told
    assert set(statuses.values()) <= {0, 1, 2}


@pytest.mark.parametrize("key", ["Max", "shape", "value"])
def test_a_number_beyond_all_formats_is_damage_for_every_command(
    tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = {**TENSOR, "Max": {"Max": DIGITS}.get(key, 1.0)}
    if key != "Max":
        first = {**TENSOR, "shape": [DIGITS]} if key == "shape" else {"type": "int", "value": DIGITS}
    path, out = str(dump(tmp_path / "a", first) / "dump.json"), str(tmp_path / "out")
    for command in (
        ("show", path), ("compare", "-tp", path, "-gp", path, "-o", out), ("overflow_check", "-i", path, "-o", out),
        ("graph_visualize", "-tp", path, "-o", out), ("acc_check", "-api_info", path, "-o", out),
        ("replay", path, NAME),
    ):  # fmt: skip
        assert main(list(command)) == 2, command
        told = "".join(capsys.readouterr())
        assert re.search(r"dump\.json: damaged at byte \d+ of \d+: a number of 4200 digits", told), (command, told)


def test_digits_in_a_text_are_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(dump(tmp_path / "a", {"type": "str", "value": f"x = [{DIGITS}, 1]"}) / "dump.json")
    assert main(["show", path]) == 0
