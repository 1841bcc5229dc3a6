"""The file of a configuration: where it may be, what it may hold, its schema and its template."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest
from configurations import APIS, GOOD, MODULES, write
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from probe.api.cli import main
from probe.common.config.config import KEYS, TASKS, Config, load_config
from probe.common.config.fields import Location
from probe.common.config.schema import schema, template
from probe.common.errors import ConfigSyntaxError, FileCheckException, MsprobeException

# --- the file of a configuration: where it may be, what it may hold, and that nothing in it is a crash

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


# -- the file itself


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (3, '"config_path" is 3; allowed: the path of a .json file'),
        *((name, "must end in .json") for name in ("config.txt", "", "config.JSON", "config.json.bak")),
        ("absent.json", "there is no such configuration file"),
        ("link.json", "is a symbolic link"),
        *((name, "is not a regular file") for name in ("folder.json", "pipe.json")),
        *(
            (name, "configuration file")
            for name in ("a\0.json", "\ud800.json", "x" * 300 + ".json", "config.json/x.json")
        ),
    ],
)
def test_what_is_no_configuration_file_is_refused_by_its_name(path, said):
    os.symlink(write(GOOD), "link.json")
    os.mkdir("folder.json")
    os.mkfifo("pipe.json")
    with pytest.raises(MsprobeException, match=re.escape(said)):
        load_config(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1, column 1 is not valid JSON"),
        (b"{", "line 1, column 2 is not valid JSON"),
        (b'{\n "task": tensor\n}', "line 2, column 10 is not valid JSON"),
        (b"{} {}", "line 1, column 4 is not valid JSON"),
        (b"{'task': 1}", "line 1, column 2 is not valid JSON"),
        (b"\n  [1]", "line 2, column 3 does not begin an object"),
        (b"3", "line 1, column 1 does not begin an object"),
        (b"null", "line 1, column 1 does not begin an object"),
        (b'{\n"a": "\xff"}', "line 2, column 7 is not UTF-8 text"),
        (b"[" * 100_000, "lists and objects are nested too deeply"),
        (b'{"a":' * 100_000, "lists and objects are nested too deeply"),
        (b'{"step": [' + b"9" * 5000 + b"]}", "a number of 5000 digits is too long to be a setting"),
        (b" " * (10 * 1024 * 1024 + 1), "the configuration file is larger than 10 MiB"),
    ],
)
def test_says_where_the_text_is_no_json_object(data, message):
    with open("config.json", "wb") as stream:
        stream.write(data)
    with pytest.raises(ConfigSyntaxError, match=f"^config.json: {re.escape(message)}.*\\.$") as caught:
        load_config("config.json")
    assert isinstance(caught.value, RuntimeError)  # what scripts written for msProbe catch
    assert isinstance(caught.value, FileCheckException)


def test_a_byte_order_mark_is_accepted():
    with open("config.json", "wb") as stream:
        stream.write(b'\xef\xbb\xbf{"dump_path": "d"}')
    assert load_config("config.json").dump_path == "d"


def test_a_repeated_key_counts_last_and_is_named(capsys):
    with open("config.json", "w") as stream:
        stream.write('{"dump_path": "d", "level": "L0", "level": "mix"}')
    assert load_config("config.json").level == "mix"
    assert '[WARNING] config.json: "level" is given more than once; the last value counts.' in capsys.readouterr().err


# -- whatever the file holds

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["tensor", "structure", "L0", "mix", "md5", "all", "4-6", "3-1", *MODULES, *APIS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
SECTION_KEYS = ("scope", "list", "tensor_list", "data_mode", "summary_mode", "file_format", "bench_path", "diff_nums")
SECTIONS = st.dictionaries(st.sampled_from(SECTION_KEYS), VALUES)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "task": st.sampled_from(["statistics", "tensor", "structure"]) | VALUES,
        "dump_path": st.just("d") | VALUES,
        "level": st.sampled_from(["L0", "L1", "mix", "debug"]) | VALUES,
        "statistics": SECTIONS | VALUES,
        "tensor": SECTIONS | VALUES,
        "structure": SECTIONS | VALUES,
        **dict.fromkeys(("step", "rank", "async_dump", "dump_enable", "extra_info", "precision", "colour"), VALUES),
    },
)
ANY_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def config_or_our_error(data):
    with open("config.json", "wb") as stream:
        stream.write(data)
    try:
        assert isinstance(load_config("config.json"), Config)
    except MsprobeException as error:
        assert str(error)
        assert len(str(error)) < 1000


@ANY_FILE
@given(NEARLY | VALUES)
@example({"dump_path": "d", "step": [float("inf")], "rank": [float("nan")]})
@example({"dump_path": "d", "task": "tensor", "tensor": {"diff_nums": float("-inf")}})
def test_any_json_gives_a_configuration_or_our_error(content):
    config_or_our_error(json.dumps(content).encode())


@pytest.mark.parametrize("depth", range(100, 1200, 50))
def test_values_of_any_depth_are_described(depth):
    config_or_our_error(b'{"dump_path": "d", "level": ' + b"[" * depth + b"]" * depth + b"}")


# --- the template and the JSON Schema of the configuration file say what the table of keys says

SCHEMA = jsonschema.Draft202012Validator(schema())


def test_every_key_is_in_the_schema_where_the_file_has_it() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    properties = schema()["properties"]
    for name, key in KEYS.items():
        places = [properties[task]["properties"] for task in key.tasks] or [properties]
        assert all(name in place and "anyOf" in place[name] for place in places)
        assert all(place[name].get("description") for place in places), name


SCHEMA_VALUES = (
    True, False, 0, 1, 3, -1, -5, 2_000_000, 1.5, -0.5, "", "3", "2-5", "x", "L1", "ALL", "npy", "md5", "all",
    "statistics", [], [1], ["1-2"], ["x"], [""], ["all"], ["forward"], [-1, 0.5], [True], [None], ["x", "y", "z"], {},
    {"a": 1},
)  # fmt: skip


# Whether there is such a folder, or such a record, no schema can say.
@pytest.mark.parametrize("name", [name for name in KEYS if name not in ("against", "bench_path", "scope")])
def test_the_schema_takes_the_values_that_the_file_may_have(name: str, in_an_empty_folder: None) -> None:
    for value in SCHEMA_VALUES:
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
