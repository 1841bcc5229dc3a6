"""Values that this version does not have, and keys that change nothing: what is said of them."""

from __future__ import annotations

import json

import pytest
from configurations import ANSWERS, exactly, load

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


@pytest.mark.parametrize("arguments", [{"level": "L2"}, {"task": "exception_dump"}, {"task": "acc_check"}])
def test_an_argument_that_is_not_available_is_refused_as_in_the_file(arguments):
    message = next(message for changes, _, message in ANSWERS if json.loads(changes) == arguments)
    name = next(iter(arguments))
    with pytest.raises(MsprobeException, match=exactly(f"PrecisionDebugger({name}=...): {message}")):
        load_config(None, **arguments)


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
