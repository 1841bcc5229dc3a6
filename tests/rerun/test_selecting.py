"""The record that is run again, by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.rerun.rerun_call import select

CALL = {"input_args": [], "input_kwargs": {}, "output": []}


def dump_of(tmp_path: Path, **header: Any) -> Dump:
    data = {
        "Functional.silu.0.forward": CALL, "Functional.linear.3.forward": CALL,
        "Module.fc.Linear.forward.0": CALL, "Functional.silu.0.backward": {"input": [], "output": []},
    }  # fmt: skip
    content = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": "", "data": data, **header}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return read(str(path))


@pytest.mark.parametrize(
    ("record", "direction"),
    [
        ("Functional.silu.0", ""),
        ("Functional.silu.0.forward", "forward"),
        ("Functional.silu.0.backward", "backward"),
    ],
)
def test_a_call_is_found_with_and_without_its_direction(tmp_path: Path, record: str, direction: str) -> None:
    found = select(dump_of(tmp_path), record)
    assert (found.case.name, found.direction, found.case.backward is not None) == ("Functional.silu.0", direction, True)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("Functional.sily.0", "nearest names: Functional.silu.0.forward"),
        ("Functional.silu.7.backward", "nearest names: Functional.silu.0.backward"),
        ("", "it has Functional.silu.0.forward"),
        ("zzz", "it has Functional.silu.0.forward"),
        ("Module.fc.Linear.forward.0", "is a module; only functions can be run again, such as Functional.silu"),
        ("Functional.linear.3.backward", "has no backward of Functional.linear.3; give Functional.linear.3.forward"),
    ],
)
def test_what_cannot_be_run_is_said_with_what_can(tmp_path: Path, record: str, said: str) -> None:
    with pytest.raises(MsprobeException, match=said):
        select(dump_of(tmp_path), record)


@pytest.mark.parametrize(("key", "value"), [("level", "L0"), ("task", "structure")])
def test_a_dump_without_calls_or_values_is_refused(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(MsprobeException, match=f'"{key}" is "{value}"'):
        select(dump_of(tmp_path, **{key: value}), "Functional.silu.0")
