"""The configuration as a specification: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from pathlib import Path

import pytest
from configurations import APIS, GOOD, MODULES, NUMBERS, exactly, load, write
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
from probe.common.errors import FileCheckException, MsprobeException, ScopeException

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


# -- defaults and arguments


def test_without_a_file_the_shipped_defaults_hold():
    config = load_config(None)
    assert config == Config()
    assert (config.task, config.level, config.risk_level) == ("statistics", "L1", None)
    assert (config.step, config.rank, config.dump_path) == ((), (), "./dump_path")


def test_a_file_with_only_a_dump_path_gives_the_defaults():
    assert load_config(write({"dump_path": "d"})) == Config(dump_path="d")


def test_arguments_win_over_the_file():
    config = load({"step": [0], "level": "mix"}, task="tensor", dump_path="other", level="L0", step=["2-3"])
    assert (config.task, config.dump_path, config.level, config.step) == ("tensor", "other", "L0", (2, 3))


def test_an_argument_hides_a_wrong_value_of_the_file():
    assert load({"level": "L9"}, level="L0").level == "L0"


def test_an_empty_step_argument_means_all_steps():
    assert load({"step": [3]}, step=[]).step == ()


def test_the_task_argument_chooses_the_section():
    sections = {"statistics": {"list": ["relu"]}, "tensor": {"list": ["conv"]}}
    assert load(sections, task="tensor").names == ("conv",)


def test_a_missing_section_is_an_empty_one():
    assert load({"statistics": ...}) == load()


@pytest.mark.parametrize("key", ["task", "level", "step", "rank", "dump_enable", "risk_level", "statistics"])
def test_null_is_the_same_as_absent(key):
    assert load({key: None}) == load({key: ...})


def test_sections_of_other_tasks_are_not_looked_at(capsys):
    assert load({"tensor": {"list": 3}, "run_ut": "x"}) == load()
    assert capsys.readouterr().err == ""


def test_the_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config(None).level = "L0"


def test_equal_files_give_equal_configurations():
    assert load({"statistics": {"data_mode": ["input"]}}) == load({"statistics": {"data_mode": ["input"]}})


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
        ({"task": "tensor", "tensor": {}}, "file_format", "npy"),
    ],
)
def test_accepts(changes, field, value):
    assert getattr(load(changes), field) == value


@pytest.mark.parametrize(
    "name",
    [
        "Functional.relu.0.forward",
        "Tensor.__mul__.12.backward",
        "Torch.cat.0.forward",
        "Distributed.all_reduce.0.forward",
        "VF.lstm.0.forward",
        "Aten.relu.0.forward",
        "NPU.npu_fusion_attention.0.forward",
        "Mint.add.0.forward",
        "MintFunctional.relu.0.forward",
        "Primitive.MatMul.0.forward",
        "Jit.construct.0.forward",
        "MyOps.twice.3.backward",
    ],
)
def test_a_scope_may_name_an_api_of_any_prefix(name):
    assert load({"statistics": {"scope": [name, name]}}).scope == (name, name)


@pytest.mark.parametrize("name", ["Module.0.fc.Linear.forward.0", "Cell.block.Block.backward.3"])
def test_a_scope_may_name_a_module_of_any_framework(name):
    assert load({"level": "L0", "statistics": {"scope": [name, name]}}).scope == (name, name)


# -- task structure


@pytest.mark.parametrize(("level", "effective"), [("L0", "L0"), ("mix", "mix"), ("L1", "mix")])
def test_structure_needs_the_modules(level, effective):
    assert load({"task": "structure", "level": level}).level == effective


def test_structure_at_l1_warns_once(capsys):
    load({"task": "structure"})
    load({"task": "structure"})
    assert capsys.readouterr().err.count('Task "structure" needs level "L0" or "mix"; "L1" becomes "mix".') == 1


def test_structure_at_l1_takes_a_scope_of_modules():
    assert load({"task": "structure", "structure": {"scope": MODULES}}).scope == tuple(MODULES)


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


def test_repeated_huge_ranges_cost_as_much_as_one():
    begin = time.process_time()
    assert len(parse_numbers(["0-1000000"] * 10_000, Location("here", "step"))) == 1_000_001
    assert time.process_time() - begin < 5  # expanding each would take minutes


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


# -- wrong values, each with its message

ALL_TASKS = '"statistics", "tensor", "structure", "overflow_check", "free_benchmark"'
WRONG = {
    "task_unknown": ({"task": "statistic"}, f'"task" is "statistic"; allowed: {ALL_TASKS}.'),
    "task_case": ({"task": "Tensor"}, f'"task" is "Tensor"; allowed: {ALL_TASKS}.'),
    "task_number": ({"task": 1}, f'"task" is 1; allowed: {ALL_TASKS}.'),
    "task_list": ({"task": ["tensor"]}, f'"task" is a list of 1; allowed: {ALL_TASKS}.'),
    "task_long": (
        {"task": "x" * 200},
        f'"task" is "{"x" * 80}..."; allowed: {ALL_TASKS}.',
    ),
    "level_unknown": ({"level": "L3"}, '"level" is "L3"; allowed: "L0", "L1", "mix", "debug".'),
    "level_case": ({"level": "l1"}, '"level" is "l1"; allowed: "L0", "L1", "mix", "debug".'),
    "level_empty": ({"level": ""}, '"level" is ""; allowed: "L0", "L1", "mix", "debug".'),
    "level_object": ({"level": {}}, '"level" is an object; allowed: "L0", "L1", "mix", "debug".'),
    "dump_path_number": ({"dump_path": 3}, '"dump_path" is 3; allowed: the path of a folder as text.'),
    "dump_path_empty": ({"dump_path": ""}, '"dump_path" is ""; allowed: the path of a folder as text.'),
    "dump_path_nul": ({"dump_path": "a\0b"}, '"dump_path" is "a\\u0000b"; allowed: the path of a folder as text.'),
    "dump_path_surrogate": (
        {"dump_path": "\ud800"},
        '"dump_path" is "\\\\ud800"; allowed: the path of a folder as text.',
    ),
    "dump_path_home": (
        {"dump_path": "~/"},
        '"dump_path" is "~/"; "~" is not expanded, so write the folder out, or "./~..." for one of such a name.',
    ),
    "dump_path_home_of": (
        {"dump_path": "~ada/dump"},
        '"dump_path" is "~ada/dump"; "~" is not expanded, so write the folder out, or "./~..." for one of such a name.',
    ),
    "dump_path_absent": (
        {"dump_path": ...},
        '"dump_path" is missing; name the folder for the dump there or in PrecisionDebugger(dump_path=).',
    ),
    "rank_not_list": ({"rank": 0}, f'"rank" is 0; allowed: a list of {NUMBERS}.'),
    "rank_text": ({"rank": "0-3"}, f'"rank" is "0-3"; allowed: a list of {NUMBERS}.'),
    "rank_reversed": ({"rank": ["6-4"]}, '"rank[0]" is "6-4", which runs backwards; write "4-6".'),
    "step_not_list": ({"step": 1}, f'"step" is 1; allowed: a list of {NUMBERS}.'),
    "step_false": ({"step": False}, f'"step" is false; allowed: a list of {NUMBERS}.'),
    "step_reversed": ({"step": [1, "3-1"]}, '"step[1]" is "3-1", which runs backwards; write "1-3".'),
    "async_text": ({"async_dump": "yes"}, '"async_dump" is "yes"; allowed: true, false.'),
    "async_number": ({"async_dump": 0}, '"async_dump" is 0; allowed: true, false.'),
    "async_bound_text": (
        {"async_dump_max_mib": "1 GiB"},
        '"async_dump_max_mib" is "1 GiB"; allowed: whole numbers of MiB from 0 to 1000000.',
    ),
    "async_bound_flag": (
        {"async_dump_max_mib": True},
        '"async_dump_max_mib" is true; allowed: whole numbers of MiB from 0 to 1000000.',
    ),
    "async_bound_negative": (
        {"async_dump_max_mib": -1},
        '"async_dump_max_mib" is -1; allowed: whole numbers of MiB from 0 to 1000000.',
    ),
    "max_gib_text": (
        {"max_gib": "1 TiB"},
        '"max_gib" is "1 TiB"; allowed: a number of GiB above 0 and up to 1000000, or -1 for no limit.',
    ),
    "max_gib_flag": (
        {"max_gib": True},
        '"max_gib" is true; allowed: a number of GiB above 0 and up to 1000000, or -1 for no limit.',
    ),
    "max_gib_zero": (
        {"max_gib": 0},
        '"max_gib" is 0; allowed: a number of GiB above 0 and up to 1000000, or -1 for no limit.',
    ),
    "max_gib_negative": (
        {"max_gib": -2},
        '"max_gib" is -2; allowed: a number of GiB above 0 and up to 1000000, or -1 for no limit.',
    ),
    "max_gib_huge": (
        {"max_gib": 1e300},
        '"max_gib" is 1e+300; allowed: a number of GiB above 0 and up to 1000000, or -1 for no limit.',
    ),
    "max_gib_no_number": (
        {"max_gib": float("nan")},
        '"max_gib" is NaN; allowed: a number of GiB above 0 and up to 1000000, or -1 for no limit.',
    ),
    "log_level_unknown": (
        {"log_level": "quiet"},
        '"log_level" is "quiet"; allowed: "debug", "info", "warning", "error", "silent".',
    ),
    "log_level_number": (
        {"log_level": 2},
        '"log_level" is 2; allowed: "debug", "info", "warning", "error", "silent".',
    ),
    "async_tensor_without_list": (
        {"task": "tensor", "tensor": {}, "async_dump": True},
        '"async_dump" is true and "tensor.list" is empty; list the records to save, as all tensors of a step would '
        "have to stay in memory.",
    ),
    "async_md5": (
        {"async_dump": True, "statistics": {"summary_mode": "md5"}},
        '"async_dump" is true and "statistics.summary_mode" is "md5", which do not go together; change one of them.',
    ),
    "async_md5_tensor": (
        {"task": "tensor", "async_dump": True, "tensor": {"summary_mode": "md5", "list": ["a"]}},
        '"async_dump" is true and "tensor.summary_mode" is "md5", which do not go together; change one of them.',
    ),
    "dump_enable_text": ({"dump_enable": "true"}, '"dump_enable" is "true"; allowed: true, false.'),
    "extra_info_number": ({"extra_info": 1}, '"extra_info" is 1; allowed: true, false.'),
    "precision_unknown": ({"precision": "middle"}, '"precision" is "middle"; allowed: "low", "high".'),
    "risk_level_unknown": ({"risk_level": "HIGH"}, '"risk_level" is "HIGH"; allowed: "ALL", "FOCUS", "CORE".'),
    "risk_level_case": ({"risk_level": "core"}, '"risk_level" is "core"; allowed: "ALL", "FOCUS", "CORE".'),
    "section_list": (
        {"statistics": []},
        '"statistics" is a list of 0; allowed: an object with the settings of this task.',
    ),
    "section_text": ({"statistics": "x"}, '"statistics" is "x"; allowed: an object with the settings of this task.'),
    "list_not_list": ({"statistics": {"list": "relu"}}, '"statistics.list" is "relu"; allowed: a list of texts.'),
    "list_numbers": ({"statistics": {"list": [1]}}, '"statistics.list[0]" is 1; allowed: a text that is not empty.'),
    "list_empty_text": (
        {"statistics": {"list": ["a", ""]}},
        '"statistics.list[1]" is ""; allowed: a text that is not empty.',
    ),
    "tensor_list_not_list": (
        {"statistics": {"tensor_list": "relu"}},
        '"statistics.tensor_list" is "relu"; allowed: a list of texts.',
    ),
    "data_mode_unknown": (
        {"statistics": {"data_mode": ["sideways"]}},
        '"statistics.data_mode[0]" is "sideways"; allowed: "forward", "backward", "input", "output", "all".',
    ),
    "data_mode_number": (
        {"statistics": {"data_mode": ["input", 1]}},
        '"statistics.data_mode[1]" is 1; allowed: "forward", "backward", "input", "output", "all".',
    ),
    "data_mode_all_and_more": (
        {"statistics": {"data_mode": ["all", "input"]}},
        '"statistics.data_mode" combines "all" with other words; give "all" alone.',
    ),
    "data_mode_not_list": (
        {"statistics": {"data_mode": "all"}},
        '"statistics.data_mode" is "all"; allowed: a list of "forward", "backward", "input", "output", "all".',
    ),
    "summary_mode_unknown": (
        {"statistics": {"summary_mode": "crc"}},
        '"statistics.summary_mode" is "crc"; allowed: "statistics", "md5", "xor".',
    ),
    "summary_mode_list": (
        {"statistics": {"summary_mode": ["md5"]}},
        '"statistics.summary_mode" is a list of 1; allowed: "statistics", "md5", "xor".',
    ),
    "file_format_unknown": (
        {"task": "tensor", "tensor": {"file_format": "pt"}},
        '"tensor.file_format" is "pt"; allowed: "npy", "bin".',
    ),
    "bench_path_absent_folder": (
        {"task": "tensor", "tensor": {"summary_mode": "md5", "bench_path": "nowhere"}},
        '"tensor.bench_path" is "nowhere"; allowed: the path of an existing folder.',
    ),
    "bench_path_file": (
        {"task": "tensor", "tensor": {"summary_mode": "md5", "bench_path": "config.json"}},
        '"tensor.bench_path" is "config.json"; allowed: the path of an existing folder.',
    ),
    "bench_path_number": (
        {"task": "tensor", "tensor": {"summary_mode": "md5", "bench_path": 1}},
        '"tensor.bench_path" is 1; allowed: the path of a folder as text.',
    ),
    "bench_path_without_md5": (
        {"task": "tensor", "tensor": {"bench_path": "."}},
        '"tensor.bench_path" needs "tensor.summary_mode" to be "md5"; it is "statistics".',
    ),
    "overflow_check_debug": (
        {"task": "overflow_check", "level": "debug"},
        '"level" is "debug", but task "overflow_check" watches calls; use "L0", "L1" or "mix".',
    ),
    "structure_debug": (
        {"task": "structure", "level": "debug"},
        '"level" is "debug", but task "structure" collects no values; use "L0" or "mix".',
    ),
}
for _key, _value, _shown, _allowed in (
    ("overflow_nums", 0, "0", "whole numbers from 1, or -1 for no limit"),
    ("check_mode", "some", '"some"', '"aicore", "atomic", "all"'),
    ("ring", 0, "0", "whole numbers from 1 to 1000000"),
    ("ring", True, "true", "whole numbers from 1 to 1000000"),
    ("every", 1.5, "1.5", "whole numbers from 1 to 1000000"),
    ("min_scale", 0, "0", "a number above 0"),
    ("max_skips", "3", '"3"', "whole numbers from 1 to 1000000"),
    ("max_gradient_norm_score", -1, "-1", "a number above 0"),
    ("replay_step", 1, "1", "true, false"),
    ("keep", "params", '"params"', '"batch", "batch+params"'),
):
    WRONG[f"{_key}_{_value}"] = (
        {"task": "overflow_check", "overflow_check": {_key: _value}},
        f'"overflow_check.{_key}" is {_shown}; allowed: {_allowed}.',
    )

for _key, _value, _shown, _allowed in (
    (
        "pert_mode", "noise", '"noise"',
        '"improve_precision", "bit_noise", "add_noise", "change_value", "no_change", "to_cpu"',
    ),
    ("handler_type", "mend", '"mend"', '"check"'),
    ("fuzz_stage", "both", '"both"', '"forward", "backward"'),
    ("fuzz_device", "tpu", '"tpu"', '"npu", "cpu"'),
    ("fuzz_level", "L0", '"L0"', '"L1"'),
    ("if_preheat", 1, "1", "true, false"),
    ("preheat_step", 0, "0", "whole numbers from 1 to 1000000"),
    ("max_sample", 1.5, "1.5", "whole numbers from 1 to 1000000"),
):  # fmt: skip
    WRONG[f"{_key}_{_value}"] = (
        {"task": "free_benchmark", "free_benchmark": {_key: _value}},
        f'"free_benchmark.{_key}" is {_shown}; allowed: {_allowed}.',
    )
WRONG["free_benchmark_level"] = (
    {"task": "free_benchmark", "level": "L0"},
    '"level" is "L0", but task "free_benchmark" runs functions again; use "L1".',
)
WRONG["free_benchmark_fix"] = (
    {"task": "free_benchmark", "free_benchmark": {"handler_type": "fix"}},
    '"free_benchmark.handler_type" is "fix", which changes what the training computes, which this tool never does; '
    'compute what is found in higher precision, or on the CPU, in your own code; use "check".',
)

for _value, _shown in ((0, "0"), (-2, "-2"), (1.0, "1.0"), (True, "true"), ("1", '"1"')):
    WRONG[f"diff_nums_{_value}"] = (
        {"task": "tensor", "tensor": {"diff_nums": _value}},
        f'"tensor.diff_nums" is {_shown}; allowed: whole numbers from 1, or -1 for no limit.',
    )
# Every key with values of other kinds: what is allowed, and for each value how the message shows it.
FLAGS = "true, false"
WORDS = '"forward", "backward", "input", "output", "all"'
TEXTS = "a list of texts"
SUMMARIES = '"statistics", "md5", "xor"'
OTHER_KINDS = {
    "task": (
        '"statistics", "tensor", "structure", "overflow_check", "free_benchmark"',
        {"null in a list": ([None], "a list of 1"), "flag": (True, "true")},
    ),
    "level": (
        '"L0", "L1", "mix", "debug"',
        {"two": ("L0,L1", '"L0,L1"'), "number": (1, "1"), "list": (["L0"], "a list of 1")},
    ),
    "dump_path": (
        "the path of a folder as text",
        {"list": (["d"], "a list of 1"), "flag": (False, "false"), "object": ({}, "an object")},
    ),
    "async_dump": (FLAGS, {"list": ([], "a list of 0"), "float": (1.5, "1.5"), "object": ({"a": 1}, "an object")}),
    "dump_enable": (FLAGS, {"number": (1, "1"), "list": ([True], "a list of 1")}),
    "extra_info": (FLAGS, {"text": ("no", '"no"'), "object": ({}, "an object")}),
    "async_dump_max_mib": (
        "whole numbers of MiB from 0 to 1000000",
        {
            "float": (1.5, "1.5"),
            "beyond": (1_000_001, "1000001"),
            "list": ([1], "a list of 1"),
            "huge": (10**90, "a very large number"),
        },
    ),
    "precision": ('"low", "high"', {"case": ("High", '"High"'), "flag": (True, "true"), "number": (32, "32")}),
    "risk_level": ('"ALL", "FOCUS", "CORE"', {"list": (["ALL"], "a list of 1"), "number": (0, "0")}),
    "rank": (f"a list of {NUMBERS}", {"object": ({"0": 1}, "an object"), "flag": (True, "true")}),
    "step": (f"a list of {NUMBERS}", {"text": ("0-3", '"0-3"'), "float": (0.5, "0.5")}),
    "statistics.list": (TEXTS, {"object": ({"a": 1}, "an object"), "number": (1, "1")}),
    "statistics.tensor_list": (TEXTS, {"flag": (True, "true")}),
    "statistics.data_mode": (f"a list of {WORDS}", {"object": ({}, "an object"), "number": (1, "1")}),
    "statistics.summary_mode": (
        SUMMARIES,
        {"case": ("MD5", '"MD5"'), "flag": (True, "true"), "object": ({}, "an object")},
    ),
    "statistics.nonfinite": (FLAGS, {"number": (1, "1"), "text": ("true", '"true"')}),
    "tensor.list": (TEXTS, {"text": ("relu", '"relu"')}),
    "tensor.summary_mode": (SUMMARIES, {"number": (5, "5")}),
    "tensor.data_mode": (f"a list of {WORDS}", {"text": ("forward", '"forward"')}),
    "tensor.file_format": (
        '"npy", "bin"',
        {"case": ("NPY", '"NPY"'), "list": (["npy"], "a list of 1"), "flag": (False, "false")},
    ),
    "tensor.bench_path": (
        "the path of a folder as text",
        {"list": (["."], "a list of 1"), "nul": ("a\0b", '"a\\u0000b"')},
    ),
    "tensor.diff_nums": (
        "whole numbers from 1, or -1 for no limit",
        {"list": ([1], "a list of 1"), "float": (1.5, "1.5"), "object": ({}, "an object")},
    ),
    "structure.list": (TEXTS, {"number": (0, "0")}),
    "structure.data_mode": (f"a list of {WORDS}", {"flag": (True, "true")}),
}
for _key, (_allowed, _values) in OTHER_KINDS.items():
    _section, _, _name = _key.rpartition(".")
    for _kind, (_value, _shown) in _values.items():
        WRONG[f"{_key} {_kind}"] = (
            {"task": _section, _section: {_name: _value}} if _section else {_name: _value},
            f'"{_key}" is {_shown}; allowed: {_allowed}.',
        )
for _task in ("statistics", "tensor", "structure"):
    WRONG[f"{_task} is a number"] = (
        {"task": _task, _task: 1},
        f'"{_task}" is 1; allowed: an object with the settings of this task.',
    )

EXAMPLES = '"Module.fc.Linear.forward.0" or "Functional.relu.0.backward"'
WRONG_SCOPE = {
    "one": (
        {"statistics": {"scope": APIS[:1]}},
        '"statistics.scope" has length 1; name the first and the last record, or none.',
    ),
    "three": (
        {"statistics": {"scope": [*APIS, APIS[0]]}},
        '"statistics.scope" has length 3; name the first and the last record, or none.',
    ),
    "module_at_l1": (
        {"statistics": {"scope": MODULES}},
        '"statistics.scope[0]" is "Module.a.B.forward.0", a module, but level "L1" collects APIs; name an API or use '
        'level "L0" or "mix".',
    ),
    "cell_at_l1": (
        {"statistics": {"scope": [APIS[0], "Cell.a.B.forward.0"]}},
        '"statistics.scope[1]" is "Cell.a.B.forward.0", a module, but level "L1" collects APIs; name an API or use '
        'level "L0" or "mix".',
    ),
    "api_at_l0": (
        {"level": "L0", "statistics": {"scope": APIS}},
        '"statistics.scope[0]" is "Functional.relu.0.forward", an API, but level "L0" collects modules; name a module '
        'or use level "L1" or "mix".',
    ),
    "api_at_structure_l0": (
        {"level": "L0", "task": "structure", "structure": {"scope": APIS}},
        '"structure.scope[0]" is "Functional.relu.0.forward", an API, but level "L0" collects modules; name a module '
        'or use level "L1" or "mix".',
    ),
}
for _first, _last in (
    ("Functional.relu.5.forward", "Functional.relu.0.forward"),
    ("Functional.relu.5.backward", "Functional.relu.5.forward"),
    ("Functional.relu.5.backward", "Functional.relu.4.forward"),
    ("Module.a.B.forward.1", "Module.a.B.forward.0"),
):
    WRONG_SCOPE[f"backwards_{_first}_{_last}"] = (
        {"level": "mix", "statistics": {"scope": [_first, _last]}},
        f'"statistics.scope" runs backwards: "{_first}" comes after "{_last}"; exchange them.',
    )
for _name in (
    "relu",
    "",
    "Functional.relu",
    "Functional.relu.0",
    "Functional.relu.forward.0.",
    "Functional.relu.x.forward",
    "Functional.relu.0.forward.input",
    "Functional.relu.0.forward ",
    "relu.0.forward",
    "Module.forward.0",
    "Module.fc.Linear.0.forward",
    "Module.fc.Linear.parameters_grad.0",
    "x.0.debug",
):
    WRONG_SCOPE[f"name_{_name}"] = (
        {"level": "mix", "statistics": {"scope": [APIS[0], _name]}},
        f'"statistics.scope[1]" is {json.dumps(_name)}; allowed: complete names as in dump.json, such as {EXAMPLES}.',
    )
WRONG_SCOPE["name_number"] = (
    {"statistics": {"scope": [3, APIS[0]]}},
    f'"statistics.scope[0]" is 3; allowed: complete names as in dump.json, such as {EXAMPLES}.',
)


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


@pytest.mark.parametrize("name", WRONG)
def test_refuses_a_wrong_value_with_one_clear_message(name):
    changes, message = WRONG[name]
    with pytest.raises(MsprobeException, match=exactly(f"config.json: {message}")) as caught:
        load(changes)
    assert caught.type is MsprobeException


@pytest.mark.parametrize("name", WRONG_SCOPE)
def test_refuses_a_scope_that_cannot_be_collected(name):
    changes, message = WRONG_SCOPE[name]
    with pytest.raises(ScopeException, match=exactly(f"config.json: {message}")):
        load(changes)


def test_a_hundred_wrong_configurations_over_every_key_have_a_message_of_their_own():
    messages = [message for _, message in (*WRONG.values(), *WRONG_SCOPE.values())]
    assert len(set(messages)) >= 100
    keys = {re.match(r'"(?:\w+\.)?(\w+)', message)[1] for message in messages}
    assert set(KEYS) <= keys


def test_a_scope_that_is_no_list_is_an_ordinary_mistake():
    message = '"statistics.scope" is "all"; allowed: a list of two names of records, or an empty one.'
    with pytest.raises(MsprobeException, match=exactly(f"config.json: {message}")) as caught:
        load({"statistics": {"scope": "all"}})
    assert caught.type is MsprobeException


@pytest.mark.parametrize("digits", [100, 5_000])
def test_a_scope_number_of_any_length_is_no_crash(digits):
    name = f"Functional.relu.{'9' * digits}.forward"
    try:
        assert load({"statistics": {"scope": [name, name]}}).scope == (name, name)
    except ScopeException as error:
        assert len(str(error)) < 300


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


# -- known, but not here


@pytest.mark.parametrize("task", UNAVAILABLE_TASKS)
def test_says_that_a_task_of_msprobe_is_not_available(task):
    reason = "(is not available in this version|-config CONFIG.json)"
    message = rf'^config\.json: "task" is "{task}", which .*{reason}; use "statistics", '
    with pytest.raises(MsprobeException, match=message):
        load({"task": task})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"level": "L2"},
            '"level" is "L2", which needs an Ascend device and is not available in this version; '
            'use "L0", "L1", "mix", "debug".',
        ),
        (
            {"task": "exception_dump"},
            '"task" is "exception_dump", which needs an Ascend device and is not available in this version; '
            'use "statistics", "tensor", "structure", "overflow_check", "free_benchmark".',
        ),
        (
            {"task": "acc_check"},
            '"task" is "acc_check", which runs the calls of a dump again, after the training: msprobe acc_check '
            "-api_info DUMP.json -config CONFIG.json; "
            'use "statistics", "tensor", "structure", "overflow_check", "free_benchmark".',
        ),
    ],
)
def test_says_what_an_unavailable_value_would_need(arguments, message):
    with pytest.raises(MsprobeException, match=exactly(f"config.json: {message}")):
        load(arguments)
    name = next(iter(arguments))
    with pytest.raises(MsprobeException, match=exactly(f"PrecisionDebugger({name}=...): {message}")):
        load_config(None, **arguments)


def test_says_that_what_selects_kernels_of_a_compiled_graph_is_not_available():
    graphs = (
        "which is for graphs that MindSpore compiles; that needs an Ascend device and is not available in this version"
    )
    section = {"list": ["relu", "name-regex(Default/.+)"]}
    message = f'"statistics.list[1]" is "name-regex(Default/.+)", {graphs}. Give parts of record names.'
    with pytest.raises(MsprobeException, match=exactly(f"config.json: {message}")):
        load({"statistics": section})
    message = f'"statistics.summary_mode" is a list of 2, {graphs}. Use "statistics", "md5", "xor".'
    with pytest.raises(MsprobeException, match=exactly(f"config.json: {message}")):
        load({"statistics": {"summary_mode": ["max", "min"]}})


# -- keys that change nothing


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"colour": "red"}, '"colour" is not a known key and is ignored.'),
        ({"levle": "L0"}, '"levle" is not a known key and is ignored; did you mean "level"?'),
        ({"statistics": {"taste": 1}}, '"statistics.taste" is not a known key and is ignored.'),
        (
            {"statistics": {"data_modes": 1}},
            '"statistics.data_modes" is not a known key and is ignored; did you mean "data_mode"?',
        ),
        ({"statistics": {"bench_path": 3}}, '"statistics.bench_path" has no effect with task "statistics".'),
        ({"task": "tensor", "tensor": {"tensor_list": 3}}, '"tensor.tensor_list" has no effect with task "tensor".'),
        (
            {"task": "structure", "structure": {"summary_mode": 3}},
            '"structure.summary_mode" has no effect with task "structure".',
        ),
        ({"list": ["relu"]}, '"list" has no effect at the top; put it into the section of the task.'),
        (
            {"statistics": {"precision": "high"}},
            '"statistics.precision" has no effect in a section; put it at the top.',
        ),
        ({"acl_config": "x"}, '"acl_config" has no effect in this version.'),
        ({"async_dump_max_mib": 5}, '"async_dump_max_mib" has no effect without "async_dump".'),
        (
            {"max_gib": 5},
            '"max_gib" has no effect where no tensors are saved, which task "tensor" and "statistics.tensor_list" do.',
        ),
        (
            {"task": "overflow_check", "overflow_check": {"check_mode": "all"}},
            '"overflow_check.check_mode" has no effect here: no unit of a device is asked, for the statistics of every '
            "value are looked at.",
        ),
        (
            {"task": "free_benchmark", "free_benchmark": {"if_preheat": True}},
            '"free_benchmark.if_preheat" has no effect here: what a correct kernel may do is derived for each call, '
            "and not learned in the first steps.",
        ),
        (
            {"task": "free_benchmark", "free_benchmark": {"data_mode": ["forward"]}},
            '"free_benchmark.data_mode" has no effect with task "free_benchmark".',
        ),
        (
            {"task": "tensor", "tensor": {"diff_nums": 3}},
            '"tensor.diff_nums" has no effect without "bench_path".',
        ),
        (
            {"level": "L0", "risk_level": "FOCUS"},
            '"risk_level" has no effect at level "L0", which collects no APIs.',
        ),
        (
            {"level": "debug", "risk_level": "CORE"},
            '"risk_level" has no effect at level "debug", which collects no APIs.',
        ),
        (
            {"level": "debug", "statistics": {"list": ["relu"]}},
            '"statistics.list" has no effect at level "debug", which records what the program saves.',
        ),
        (
            {"level": "debug", "statistics": {"scope": APIS}},
            '"statistics.scope" has no effect at level "debug", which records what the program saves.',
        ),
        (
            {"level": "debug", "statistics": {"tensor_list": ["relu"]}},
            '"statistics.tensor_list" has no effect at level "debug", which records what the program saves.',
        ),
        (
            {"level": "debug", "statistics": {"data_mode": ["forward"]}},
            '"statistics.data_mode" has no effect at level "debug", which records what the program saves.',
        ),
        (
            {"level": "debug", "task": "tensor", "tensor": {"summary_mode": "md5", "bench_path": "."}},
            '"tensor.bench_path" has no effect at level "debug", which records what the program saves.',
        ),
        (
            {"task": "tensor", "tensor": {"backward_input": []}},
            '"tensor.backward_input" has no effect in this version.',
        ),
    ],
)
def test_warns_of_a_key_without_effect(changes, warning, capsys):
    load(changes)
    load(changes)
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


# -- the folder


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("link", '"dump_path" is "link", a symbolic link; give the folder it points to.'),
        ("link/", '"dump_path" is "link/", a symbolic link; give the folder it points to.'),
        ("dangling", '"dump_path" is "dangling", a symbolic link; give the folder it points to.'),
        ("dangling/below", '"dump_path" is "dangling/below", but "/.../dangling" is a link to what is not there.'),
        ("file", '"dump_path" is "file", which is not a folder.'),
        ("file/below/deep", '"dump_path" is "file/below/deep", but "/.../file" is not a folder.'),
        ("x" * 5000, f'"dump_path" is "{"x" * 80}...", and that cannot be: File name too long.'),
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


def test_a_link_at_the_default_dump_path_is_refused_too():
    os.symlink(".", "dump_path")
    message = 'default configuration: "dump_path" is "./dump_path", a symbolic link; give the folder it points to.'
    with pytest.raises(FileCheckException, match=exactly(message)):
        load_config(None)


@pytest.mark.parametrize("path", ["real", "link/below", "new/deep", "./~", "a~"])
def test_a_dump_path_that_is_a_folder_or_can_become_one_is_accepted_and_not_made(path):
    os.mkdir("real")
    os.symlink("real", "link")
    assert load({"dump_path": path}).dump_path == path
    assert os.listdir("real") == [] and not os.path.lexists("new")


def test_many_unknown_keys_do_not_flood_the_log(capsys):
    load({f"q{number}z": 1 for number in range(1000)})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("config.json: 990 more keys are not known and are ignored.")


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
