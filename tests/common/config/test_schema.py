"""The template and the JSON Schema of the configuration file say what the table of keys says."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from probe.api.cli import main
from probe.common.config.config import KEYS, TASKS, load_config
from probe.common.config.fields import Location
from probe.common.config.schema import schema, template
from probe.common.errors import MsprobeException

SCHEMA = jsonschema.Draft202012Validator(schema())


def test_every_key_is_in_the_schema_where_the_file_has_it() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    properties = schema()["properties"]
    for name, key in KEYS.items():
        places = [properties[task]["properties"] for task in key.tasks] or [properties]
        assert all(name in place and "anyOf" in place[name] for place in places)
        assert all(place[name].get("description") for place in places), name


VALUES = (
    True, False, 0, 1, 3, -1, -5, 2_000_000, 1.5, -0.5, "", "3", "2-5", "x", "L1", "ALL", "npy", "md5", "all",
    "statistics", [], [1], ["1-2"], ["x"], [""], ["all"], ["forward"], [-1, 0.5], [True], [None], ["x", "y", "z"], {},
    {"a": 1},
)  # fmt: skip


# Whether there is such a folder, or such a record, no schema can say.
@pytest.mark.parametrize("name", [name for name in KEYS if name not in ("bench_path", "scope")])
def test_the_schema_takes_the_values_that_the_file_may_have(name: str, in_an_empty_folder: None) -> None:
    for value in VALUES:
        try:
            KEYS[name].parse(value, Location("config.json", name))
            is_taken = True
        except MsprobeException:
            is_taken = False
        task = next(iter(KEYS[name].tasks), None)
        content = {name: value} if task is None else {task: {name: value}}
        assert SCHEMA.is_valid(content) == is_taken, value


@pytest.mark.parametrize("task", TASKS)
def test_a_template_is_the_default_configuration_and_valid(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config", "-t", task, "-o", "here"]) == 0
    assert capsys.readouterr().out == "here/config.json\n"
    content = json.loads(Path("here/config.json").read_text(encoding="utf-8"))
    SCHEMA.validate(content)
    assert json.loads(Path("here/config.schema.json").read_text(encoding="utf-8")) == schema()
    level = "mix" if task == "structure" else None
    assert load_config("here/config.json") == load_config(None, task=task, level=level)
    assert capsys.readouterr().err == ""
    assert main(["config", "-t", task, "-o", "here"]) == 2
    assert "here/config.json exists already" in capsys.readouterr().err


def test_the_template_and_the_schema_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "-t", "tensor"]) == 0
    assert json.loads(capsys.readouterr().out) == template("tensor")
    assert main(["config", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()
