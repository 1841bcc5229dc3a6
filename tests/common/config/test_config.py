"""The configuration as a specification: what is accepted, what is refused, and what it means."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from configurations import ANSWERS, APIS, GOOD, MODULES, NUMBERS, exactly, load, write
from hypothesis import given
from hypothesis import strategies as st

from probe.common.config.config import (
    KEYS,
    TASKS,
    UNAVAILABLE_LEVELS,
    UNAVAILABLE_TASKS,
    WITHOUT_EFFECT,
    Config,
    load_config,
)
from probe.common.config.fields import Location, parse_numbers
from probe.common.errors import FileCheckException, MsprobeException

# --- the configuration as a specification: what is accepted, and what it means

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


# -- defaults and arguments


def test_without_a_file_the_shipped_defaults_hold():
    config = load_config(None)
    assert config == Config()
    assert (config.task, config.level, config.risk_level) == ("statistics", "L1", None)
    assert (config.step, config.rank, config.dump_path) == ((), (), "./dump_path")


def test_arguments_win_over_the_file():
    config = load({"step": [0], "level": "mix"}, task="tensor", dump_path="other", level="L0", step=["2-3"])
    assert (config.task, config.dump_path, config.level, config.step) == ("tensor", "other", "L0", (2, 3))


@pytest.mark.parametrize("key", ["task", "level", "step", "rank", "dump_enable", "risk_level", "statistics"])
def test_null_is_the_same_as_absent(key):
    assert load({key: None}) == load({key: ...})


def test_sections_of_other_tasks_are_not_looked_at(capsys):
    assert load({"tensor": {"list": 3}, "run_ut": "x"}) == load()
    assert capsys.readouterr().err == ""


# -- accepted values


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"dump_enable": ...}, "dump_enable", None),
        ({"dump_enable": False}, "dump_enable", False),
        ({"dump_enable": True}, "dump_enable", True),
        ({"extra_info": False}, "extra_info", False),
        ({"precision": "high"}, "precision", "high"),
        ({"risk_level": "CORE"}, "risk_level", "CORE"),
        ({"level": "debug"}, "level", "debug"),
        ({"rank": [0, "4-6"]}, "rank", (0, 4, 5, 6)),
        ({"step": [11, "12-13"]}, "step", (11, 12, 13)),
        ({"async_dump": True}, "async_dump", True),
        ({"async_dump_max_mib": 0}, "async_dump_max_mib", 0),
        ({"async_dump_max_mib": 64}, "async_dump_max_mib", 64),
        ({"task": "tensor", "max_gib": 0.25}, "max_gib", 0.25),
        ({"task": "tensor", "max_gib": 1000000}, "max_gib", 1000000),
        ({"statistics": {"tensor_list": ["fc"]}, "max_gib": -1}, "max_gib", -1),
        ({"max_gib": 100}, "max_gib", 100),
        ({"log_level": "warning"}, "log_level", "warning"),
        ({"log_level": "silent"}, "log_level", "silent"),
        ({"async_dump": True, "statistics": {"summary_mode": "xor"}}, "summary_mode", "xor"),
        ({"task": "tensor", "async_dump": True, "tensor": {"list": ["relu"]}}, "names", ("relu",)),
        ({"task": "tensor", "async_dump": True, "level": "debug", "tensor": {}}, "async_dump", True),
        ({"statistics": {"list": ["relu", "conv"]}}, "names", ("relu", "conv")),
        ({"statistics": {"tensor_list": ["fc2"]}}, "tensor_list", ("fc2",)),
        ({"statistics": {"scope": []}}, "scope", ()),
        ({"statistics": {"scope": APIS}}, "scope", tuple(APIS)),
        ({"level": "L0", "statistics": {"scope": MODULES}}, "scope", tuple(MODULES)),
        ({"level": "mix", "statistics": {"scope": [MODULES[0], APIS[1]]}}, "scope", (MODULES[0], APIS[1])),
        ({"statistics": {"data_mode": []}}, "data_mode", frozenset()),
        ({"statistics": {"data_mode": ["all"]}}, "data_mode", frozenset()),
        ({"statistics": {"data_mode": ["forward", "input"]}}, "data_mode", frozenset({"forward", "input"})),
        ({"statistics": {"summary_mode": "md5"}}, "summary_mode", "md5"),
        ({"task": "tensor", "tensor": {"summary_mode": "md5", "diff_nums": -1}}, "diff_nums", -1),
        ({"task": "tensor", "tensor": {"summary_mode": "md5", "bench_path": "."}}, "bench_path", "."),
        ({"statistics": {"nonfinite": True}}, "nonfinite", True),
        ({"task": "tensor", "tensor": {"nonfinite": False}}, "nonfinite", False),
        ({"task": "tensor", "tensor": {"file_format": "bin"}}, "file_format", "bin"),
        ({"task": "tensor", "tensor": {}}, "file_format", None),
    ],
)
def test_a_value_is_taken_in_each_of_its_forms(changes, field, value):
    assert getattr(load(changes), field) == value


# -- task structure


@pytest.mark.parametrize(("level", "effective"), [("L0", "L0"), ("mix", "mix"), ("L1", "mix")])
def test_structure_needs_the_modules(level, effective):
    assert load({"task": "structure", "level": level}).level == effective


def test_structure_at_l1_warns_once(capsys):
    load({"task": "structure"})
    load({"task": "structure"})
    assert capsys.readouterr().err.count('Task "structure" needs level "L0" or "mix"; "L1" becomes "mix".') == 1


# -- steps and ranks


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ([], ()),
        ([3, 1, 3], (1, 3)),
        (["3"], (3,)),
        (["4-6"], (4, 5, 6)),
        (["4-4"], (4,)),
        ([" 4 - 6 "], (4, 5, 6)),
        ([0, 1_000_000], (0, 1_000_000)),
        (["5-7", 6, "1-5", 9], (1, 2, 3, 4, 5, 6, 7, 9)),
        (["1-9", "2-3"], tuple(range(1, 10))),
        ((1, 2), (1, 2)),
        (range(3), (0, 1, 2)),
    ],
)
def test_numbers_are_sorted_and_unique(values, numbers):
    assert parse_numbers(values, Location("here", "step")) == numbers


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_ranges_give_the_union_of_what_they_contain(spans):
    expected = {number for first, more in spans for number in range(first, first + more + 1)}
    texts = [f"{first}-{first + more}" for first, more in spans]
    assert parse_numbers(texts, Location("here", "step")) == tuple(sorted(expected))


@pytest.mark.parametrize("key", ["step", "rank"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1, "-1"),
        (1.5, "1.5"),
        (3.0, "3.0"),
        (True, "true"),
        (None, "null"),
        (10**7, "10000000"),
        (1_000_001, "1000001"),
        (10**90, "a very large number"),
        (float("nan"), "NaN"),
        ("a-b", '"a-b"'),
        ("1-2-3", '"1-2-3"'),
        ("-3", '"-3"'),
        ("", '""'),
        ("٣", '"٣"'),
        ("0-1000001", '"0-1000001"'),
        ("9" * 30, f'"{"9" * 30}"'),
        ([1], "a list of 1"),
        ({}, "an object"),
    ],
)
def test_refuses_an_element_that_is_no_step_or_rank(key, value, shown):
    with pytest.raises(MsprobeException, match=exactly(f'config.json: "{key}[1]" is {shown}; allowed: {NUMBERS}.')):
        load({key: [0, value]})


# -- the folder


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("link", '"dump_path" is "link", a symbolic link; give the folder it points to.'),
        ("link/", '"dump_path" is "link/", a symbolic link; give the folder it points to.'),
        ("dangling", '"dump_path" is "dangling", a symbolic link; give the folder it points to.'),
        (
            "dangling/below",
            '"dump_path" is "dangling/below", but "/.../dangling" is a link whose target does not exist.',
        ),
        ("file", '"dump_path" is "file", which is not a folder.'),
        ("file/below/deep", '"dump_path" is "file/below/deep", but "/.../file" is not a folder.'),
        ("x" * 5000, f'"dump_path" is "{"x" * 80}...", which is not possible: File name too long.'),
    ],
)
@pytest.mark.parametrize("as_argument", [False, True])
def test_a_dump_path_that_can_be_no_folder_is_refused_at_once(tmp_path, path, message, as_argument):
    os.mkdir("real")
    os.symlink("real", "link")
    os.symlink("nothing", "dangling")
    open("file", "w").close()
    origin = "PrecisionDebugger(dump_path=...)" if as_argument else "config.json"
    with pytest.raises(FileCheckException) as caught:
        load(dump_path=path) if as_argument else load({"dump_path": path})
    assert str(caught.value) == f"{origin}: {message}".replace("/...", str(tmp_path))


@pytest.mark.parametrize("path", ["real", "link/below", "new/deep", "./~", "a~"])
def test_a_dump_path_that_is_a_folder_or_can_become_one_is_accepted_and_not_made(path):
    os.mkdir("real")
    os.symlink("real", "link")
    assert load({"dump_path": path}).dump_path == path
    assert os.listdir("real") == [] and not os.path.lexists("new")


# -- the documentation


def documentation():
    return (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")


def test_the_documented_example_is_accepted_without_a_warning(capsys):
    example_text = re.search(r"```json\n(.*?)```", documentation(), re.DOTALL)[1]
    assert load_config(write(json.loads(example_text))).step == (0, 10, 11, 12)
    assert capsys.readouterr().err == ""


def documented_keys():
    """The rows of the tables of keys: the key, its tasks or ``None`` at the top, and the text of its default."""
    at_top, in_section = re.split("^## Keys of a section$", documentation(), flags=re.MULTILINE)
    for row in re.findall(r"^\| `(\w+)` \|(.*)\|$", at_top.partition("## Keys at the top")[2], re.MULTILINE):
        yield row[0], (), row[1].rpartition("|")[2].strip()
    for row in re.findall(r"^\| `(\w+)` \|([^|]*)\|(.*)\|$", in_section.partition("## ")[0], re.MULTILINE):
        tasks = TASKS if "all" in row[1] else tuple(re.findall(r"`(\w+)`", row[1]))
        yield row[0], tasks, row[2].rpartition("|")[2].strip()


def test_every_key_is_documented_where_it_stands_and_with_its_default():
    documented = {name: (tasks, default) for name, tasks, default in documented_keys()}
    assert {name: tasks for name, (tasks, _) in documented.items()} == {name: key.tasks for name, key in KEYS.items()}
    for name, (_, text) in documented.items():
        # The default of the risk level is the framework's, and the path of the dump has none.
        if text.startswith("`") and name != "risk_level":
            assert KEYS[name].parse(json.loads(text.strip("`")), Location("docs", name)) == KEYS[name].default
        elif name != "risk_level":
            assert KEYS[name].default is None or name == "dump_path"


def test_every_unavailable_value_and_key_without_effect_is_documented():
    words = set(re.findall(r"`([^`\n]+)`", documentation()))
    assert {*UNAVAILABLE_TASKS, *UNAVAILABLE_LEVELS, *WITHOUT_EFFECT} <= words


# --- wrong configurations: each is refused in one sentence with the key, the value and what is allowed

CASES = [case for case in ANSWERS if case[1] != "warning"]
ALL_TASKS = '"statistics", "tensor", "structure", "overflow_check", "free_benchmark", "grad_probe"'


@pytest.mark.parametrize(
    "scope",
    [
        ["Functional.relu.5.forward", "Functional.relu.5.forward"],
        ["Functional.relu.5.forward", "Functional.relu.5.backward"],
        # Backwards run in the opposite order.
        ["Functional.relu.5.backward", "Functional.relu.0.backward"],
        ["Functional.relu.5.forward", "Functional.relu.0.backward"],
        # With gradients that accumulate the backward of one forward is before the next forward.
        ["Functional.relu.0.backward", "Functional.relu.5.forward"],
        ["Functional.relu.0.backward", "Functional.relu.5.backward"],
        ["Functional.relu.5.forward", "Functional.gelu.0.forward"],
    ],
)
def test_a_scope_whose_order_the_names_do_not_contradict_is_accepted(scope):
    assert load({"statistics": {"scope": scope}}).scope == tuple(scope)


@pytest.mark.parametrize(("changes", "kind", "message"), CASES)
def test_refuses_a_wrong_value_with_one_clear_message(changes, kind, message):
    content = {key: ... if value == "<absent>" else value for key, value in json.loads(changes).items()}
    with pytest.raises(MsprobeException, match=exactly(f"config.json: {message}")) as caught:
        load(content)
    assert caught.type.__name__ == kind


def test_a_hundred_wrong_configurations_over_every_key_have_a_message_of_their_own():
    messages = [message for _, _, message in CASES]
    assert len(set(messages)) >= 100
    keys = {re.match(r'"(?:\w+\.)?(\w+)', message)[1] for message in messages}
    assert set(KEYS) <= keys


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "x"}, f'task=...): "task" is "x"; allowed: {ALL_TASKS}.'),
        ({"level": "x"}, 'level=...): "level" is "x"; allowed: "L0", "L1", "mix", "debug".'),
        ({"level": b"L1"}, 'level=...): "level" is of type bytes; allowed: "L0", "L1", "mix", "debug".'),
        ({"level": 10**5000}, 'level=...): "level" is a very large number; allowed: "L0", "L1", "mix", "debug".'),
        ({"dump_path": 3}, 'dump_path=...): "dump_path" is 3; allowed: the path of a folder as text.'),
        ({"step": 3}, f'step=...): "step" is 3; allowed: a list of {NUMBERS}.'),
        ({"step": (1, True)}, f'step=...): "step[1]" is true; allowed: {NUMBERS}.'),
        ({"step": ["3-1"]}, 'step=...): "step[0]" is "3-1", which runs backwards; write "1-3".'),
        (
            {"task": "structure", "level": "debug"},
            'level=...): "level" is "debug", but task "structure" collects no values; use "L0" or "mix".',
        ),
    ],
)
@pytest.mark.parametrize("with_file", [True, False])
def test_refuses_a_wrong_argument_by_its_name(arguments, message, with_file):
    path = write(GOOD) if with_file else None
    with pytest.raises(MsprobeException, match=exactly(f"PrecisionDebugger({message}")):
        load_config(path, **arguments)


# --- values that this version does not have, and keys that change nothing: what is said of them

# -- known, but not here


# -- keys that change nothing


@pytest.mark.parametrize(
    ("changes", "warning"), [(changes, message) for changes, kind, message in ANSWERS if kind == "warning"]
)
def test_warns_of_a_key_without_effect(changes, warning, capsys):
    load(json.loads(changes))
    load(json.loads(changes))
    lines = [line for line in capsys.readouterr().err.splitlines() if "becomes" not in line]
    assert len(lines) == 1
    assert lines[0].endswith(f"[WARNING] config.json: {warning}")


def test_a_setting_that_has_an_effect_or_says_the_default_gets_no_warning(capsys):
    load({"async_dump": True, "async_dump_max_mib": 5, "risk_level": "CORE"})
    load({"task": "tensor", "tensor": {"summary_mode": "md5", "bench_path": ".", "diff_nums": 3}})
    load({"level": "debug", "statistics": {"scope": [], "list": [], "data_mode": ["all"]}, "async_dump_max_mib": 1024})
    load({"task": "tensor", "tensor": {"diff_nums": 1}})
    load({"level": "L0", "risk_level": "ALL"})
    assert capsys.readouterr().err == ""


def test_many_unknown_keys_do_not_flood_the_log(capsys):
    load({f"q{number}z": 1 for number in range(1000)})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("config.json: 990 more keys are not known and are ignored.")
