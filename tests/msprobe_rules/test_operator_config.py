"""The configuration file of a single-operator script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe.common.dump.reading.dump import read
from probe.common.errors import FileCheckException, MsprobeException
from probe.msprobe_rules.operator_config import extract, read_operator_config
from probe.rerun.selecting import select

REPLAY = Path(__file__).parents[1] / "precheck" / "cases" / "replay" / "dump.json"
CONTENT = {
    "dump_json_path": "dump.json", "api_name": "Functional.silu.0", "extract_api_path": "silu.json",
    "propagation": "backward", "data_mode": "real_data", "random_seed": 7, "iter_times": 3,
}  # fmt: skip


def written(tmp_path: Path, **changes: Any) -> str:
    content = {key: value for key, value in {**CONTENT, **changes}.items() if value is not None}
    path = tmp_path / "config_op.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_all_keys_are_read(tmp_path: Path) -> None:
    found = read_operator_config(written(tmp_path))
    assert (found.dump, found.record, found.extract) == ("dump.json", "Functional.silu.0.backward", "silu.json")
    # Real inputs are the same each time.
    assert (found.generate, found.seed, found.times) == (False, 7, 1)
    assert read_operator_config(written(tmp_path, data_mode="random_data")).times == 3


def test_defaults_are_those_of_the_tool(tmp_path: Path) -> None:
    optional = ("extract_api_path", "propagation", "data_mode", "random_seed", "iter_times")
    found = read_operator_config(written(tmp_path, **dict.fromkeys(optional)))
    assert (found.direction, found.generate, found.seed, found.times) == ("forward", True, 1234, 1)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("dump_json_path", None, "dump.json"),
        ("api_name", "silu", "Functional.softmax.0"),
        ("api_name", "Module.fc.Linear.forward", "Functional.softmax.0"),
        ("propagation", "both", '"forward", "backward"'),
        ("data_mode", "real", '"random_data", "real_data"'),
        ("random_seed", -1, "from 0 to 4294967295"),
        ("random_seed", True, "from 0 to 4294967295"),
        ("iter_times", 1001, "from 1 to 1000"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(tmp_path: Path, key: str, value: Any, allowed: str) -> None:
    with pytest.raises(MsprobeException) as caught:
        read_operator_config(written(tmp_path, **{key: value}))
    assert f'"{key}" is' in str(caught.value)
    assert allowed in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileCheckException, match="nowhere"):
        read_operator_config(str(tmp_path / "nowhere.json"))


def test_the_record_cut_out_is_a_dump_of_its_own(tmp_path: Path) -> None:
    dump = read(str(REPLAY))
    case = select(dump, "Functional.silu.0").case
    path = tmp_path / "cut" / "silu.json"
    extract(dump, case, str(path))
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["data"] == {name: dump[name].fields for name in (case.forward.name, f"{case.name}.backward")}
    assert path.stat().st_mode & 0o777 == 0o640
