"""Wrong configurations: each is refused in one sentence with the key, the value and what is allowed."""

from __future__ import annotations

import json
import re

import pytest
from configurations import APIS, GOOD, MODULES, NUMBERS, exactly, load, write

from probe.common.config.config import (
    KEYS,
    load_config,
)
from probe.common.errors import MsprobeException, ScopeException

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


ALL_TASKS = '"statistics", "tensor", "structure", "overflow_check", "free_benchmark", "grad_probe"'
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
        '"dump_path" is missing; give the folder for the dump there or in PrecisionDebugger(dump_path=).',
    ),
    "dump_path_misspelled": (
        {"dump_path": ..., "dump_pth": "x"},
        '"dump_path" is missing, and "dump_pth" is not a known key; did you mean "dump_path"?',
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
    "environment_number": ({"environment": 1}, '"environment" is 1; allowed: true, false.'),
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
    "module_number": (
        {"statistics": {"module": 3}},
        '"statistics.module" is 3; allowed: a name or a pattern such as "layers.1" or "*Norm".',
    ),
    "module_at_l1": (
        {"statistics": {"module": "layers.1"}},
        '"module" needs level "L0" or "mix"; the level is "L1", without modules.',
    ),
    "api_empty": (
        {"statistics": {"api": ""}},
        '"statistics.api" is ""; allowed: a name or a pattern such as "layers.1" or "*Norm".',
    ),
    "api_at_l0": (
        {"level": "L0", "statistics": {"api": "relu"}},
        '"api" needs level "L1" or "mix"; the level is "L0", without functions.',
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
    '"free_benchmark.handler_type" is "fix", which changes the results of the training, which this tool never does; '
    'compute the functions found in higher precision, or on the CPU, in your own code; use "check".',
)

for _value, _shown in ((0, "0"), (-2, "-2"), (1.0, "1.0"), (True, "true"), ("1", '"1"')):
    WRONG[f"diff_nums_{_value}"] = (
        {"task": "tensor", "tensor": {"diff_nums": _value}},
        f'"tensor.diff_nums" is {_shown}; allowed: whole numbers from 1, or -1 for no limit.',
    )
_ASCENDING = "a list of finite numbers, each larger than the one before"
for _key, _value, _where, _allowed in (
    ("grad_level", "L3", '"grad_probe.grad_level" is "L3"', '"L0", "L1", "L2"'),
    ("param_list", "weight", '"grad_probe.param_list" is "weight"', "a list of texts"),
    ("bounds", [], '"grad_probe.bounds" is a list of 0', _ASCENDING),
    ("bounds", [1, 0], '"grad_probe.bounds[1]" is 0', _ASCENDING),
    ("bounds", [0, True], '"grad_probe.bounds[1]" is true', _ASCENDING),
    ("bounds", 3, '"grad_probe.bounds" is 3', _ASCENDING),
):
    _wrong = {"task": "grad_probe", "grad_probe": {_key: _value}}
    WRONG[f"{_key}_{_value}"] = (_wrong, f"{_where}; allowed: {_allowed}.")
# Every key with values of other kinds: what is allowed, and for each value how the message shows it.
FLAGS = "true, false"
WORDS = '"forward", "backward", "input", "output", "all"'
TEXTS = "a list of texts"
SUMMARIES = '"statistics", "md5", "xor"'
OTHER_KINDS = {
    "task": (
        ALL_TASKS,
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
    "environment": (FLAGS, {"text": ("no", '"no"'), "object": ({}, "an object")}),
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
    "statistics.sketch": (FLAGS, {"number": (0, "0"), "text": ("false", '"false"')}),
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
