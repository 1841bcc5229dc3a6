"""Wrong configurations: each is refused in one sentence with the key, the value and what is allowed."""

from __future__ import annotations

import json
import re

import pytest
from configurations import ANSWERS, GOOD, NUMBERS, exactly, load, write

from probe.common.config.config import KEYS, load_config
from probe.common.errors import MsprobeException, ScopeException

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


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
