"""The key ``alert`` of the configuration, and what is done about findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe.common.errors import MsprobeException
from probe.monitor.alerts.actions import ALERTS, Actions, ActionSettings
from probe.monitor.alerts.configured import alert_settings, unknown_keys
from probe.monitor.alerts.learned import LearnedRules
from probe.monitor.alerts.named import NamedRules
from probe.monitor.alerts.rows import Finding


def test_without_rules_the_learned_ones_judge() -> None:
    assert alert_settings(None) is None
    settings = alert_settings({"rules": []})
    assert settings is not None and isinstance(settings.judge(0), LearnedRules)
    named = alert_settings({"rules": ["AnomalyNan", {"rule_name": "AnomalyTurbulence", "args": {"threshold": 1}}]})
    assert named is not None and isinstance(named.judge(0), NamedRules)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], '"alert" is a list of 0; allowed: an object'),
        ({"rules": "AnomalyNan"}, '"alert.rules" is "AnomalyNan"; allowed: a list'),
        (
            {"rules": [{"rule_name": "Nan"}]},
            '"alert.rules[0].rule_name" is "Nan"; allowed: "AnomalyTurbulence", "AnomalyNan"',
        ),
        ({"rules": ["AnomalyTurbulence"]}, '"alert.rules[0].args.threshold" is missing'),
        (
            {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": "x"}}]},
            '"alert.rules[0].args.threshold" is "x"',
        ),
        ({"dump": 1}, '"alert.dump" is 1; allowed: true, false'),
        ({"actions": ["mail"]}, '"alert.actions" has "mail"; allowed: "log", "file", "stop", "dump"'),
        ({"dump_times": 0}, '"alert.dump_times" is 0; allowed: an integer of 1 or more'),
        ({"min_history": True}, '"alert.min_history" is true'),
    ],
)
def test_wrong_values_are_named(value: Any, words: str) -> None:
    with pytest.raises(MsprobeException) as error:
        alert_settings(value)
    assert words in str(error.value)


def test_a_key_that_is_not_known_has_its_neighbour() -> None:
    assert unknown_keys({"rule": [], "dump": True}) == ['unknown key "alert.rule"; did you mean "rules"?']


def finding(step: int) -> Finding:
    return Finding("head", "actv", step, 0, "spike", "norm", float("inf"), "less", "it is large")


def test_actions_are_taken_and_a_failure_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    armed: list[int] = []
    seen: list[int] = []

    def callback(found: Any) -> None:
        seen.append(found[0].step)
        raise RuntimeError("of the user")

    settings = ActionSettings(("log", "file", "dump"), dumps=1)
    actions = Actions(settings, str(tmp_path / "rank0"), armed.append, callback=callback)
    for step in (3, 4):
        actions.act(step, [finding(step)] * 7)
    actions.act(5, [])
    assert (armed, seen) == ([3], [3, 4])
    lines = (tmp_path / "rank0" / ALERTS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3] * 7 + [4] * 7
    printed = capsys.readouterr().err
    assert printed.count("of the user") == 1
    assert "step 3, rank 0: head (actv): spike: it is large" in printed and "2 more rows of step 3" in printed


def test_actions_that_are_not_configured_are_not_taken(tmp_path: Path) -> None:
    armed: list[int] = []
    Actions(ActionSettings(("log",)), str(tmp_path / "rank0"), armed.append, armed.append).act(1, [finding(1)])
    assert armed == [] and not (tmp_path / "rank0").exists()
