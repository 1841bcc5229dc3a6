"""Values that this version does not have, and keys that change nothing: what is said of them."""

from __future__ import annotations

import pytest
from configurations import APIS, exactly, load

from probe.common.config.config import (
    UNAVAILABLE_TASKS,
    load_config,
)
from probe.common.errors import MsprobeException

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


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
            'use "statistics", "tensor", "structure", "overflow_check", "free_benchmark", "grad_probe".',
        ),
        (
            {"task": "acc_check"},
            '"task" is "acc_check", which runs the calls of a dump again, after the training: msprobe acc_check '
            "-api_info DUMP.json -config CONFIG.json; "
            'use "statistics", "tensor", "structure", "overflow_check", "free_benchmark", "grad_probe".',
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
        ({"statistcs": {}}, '"statistcs" is not a known key and is ignored; did you mean "statistics"?'),
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
        (
            {"task": "tensor", "tensor": {"file_format": "npy"}},
            '"tensor.file_format" has no effect here: the files of tensors are .pt with PyTorch and .npy with '
            "MindSpore.",
        ),
        ({"statistics": {"error_data_path": "./"}}, '"statistics.error_data_path" has no effect in this version.'),
        ({"acl_config": "x"}, '"acl_config" has no effect in this version.'),
        ({"async_dump_max_mib": 5}, '"async_dump_max_mib" has no effect without "async_dump".'),
        (
            {"max_gib": 5},
            '"max_gib" has no effect if no tensors are saved; task "tensor" and "statistics.tensor_list" save them.',
        ),
        (
            {"task": "overflow_check", "overflow_check": {"check_mode": "all"}},
            '"overflow_check.check_mode" has no effect here: the statistics of every value are checked, not a '
            "unit of a device.",
        ),
        (
            {"task": "free_benchmark", "free_benchmark": {"if_preheat": True}},
            '"free_benchmark.if_preheat" has no effect here: the limits of a correct kernel are derived for '
            "each call, not learned in the first steps.",
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


def test_many_unknown_keys_do_not_flood_the_log(capsys):
    load({f"q{number}z": 1 for number in range(1000)})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("config.json: 990 more keys are not known and are ignored.")
