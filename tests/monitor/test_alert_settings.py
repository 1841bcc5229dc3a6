"""The key ``alert`` of the configuration, and what is done about findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe.common.errors import MsprobeException
from probe.monitor.alerts.actions import ALERTS, Alerts
from probe.monitor.alerts.learned import LearnedRules
from probe.monitor.alerts.rows import Finding
from probe.monitor.setup.alert import AlertSettings
from probe.monitor.setup.first import load


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], '"alert" is a list of 0; allowed: an object'),
        ({"rules": "AnomalyNan"}, '"alert.rules" is "AnomalyNan"; allowed: a list'),
        ({"dump": 1}, '"alert.dump" is 1; allowed: true, false'),
        ({"actions": ["log", "mail"]}, '"alert.actions[1]" is "mail"; allowed: "log", "file", "stop", "dump"'),
        ({"dump_times": 0}, '"alert.dump_times" is 0; allowed: whole numbers from 1'),
        ({"min_history": True}, '"alert.min_history" is true'),
    ],
)
def test_wrong_values_are_named(value: Any, words: str) -> None:
    with pytest.raises(MsprobeException) as error:
        load("config.json", {"alert": value})
    assert words in str(error.value)


def finding(step: int) -> Finding:
    return Finding("head", "actv", step, 0, "spike", "norm", float("inf"), "less", "it is large")


def made(folder: Path, armed: list[int], *actions: str) -> Alerts:
    settings = AlertSettings(actions=actions)
    return Alerts(settings, LearnedRules(), 0, str(folder / "rank0"), armed.append, armed.append)


def test_actions_are_taken_and_a_failure_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    armed: list[int] = []
    seen: list[int] = []

    def callback(found: Any) -> None:
        seen.append(found[0].step)
        raise RuntimeError("of the user")

    actions = made(tmp_path, armed, "log", "file", "dump")
    actions.callbacks.append(callback)
    for step in (3, 4):
        actions.act(step, [finding(step)] * 7)
    assert (armed, seen) == ([3], [3, 4])
    lines = (tmp_path / "rank0" / ALERTS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3] * 7 + [4] * 7
    printed = capsys.readouterr().err
    assert printed.count("of the user") == 1
    assert "step 3, rank 0: head (actv): spike: it is large" in printed and "2 more rows of step 3" in printed


def test_actions_that_are_not_configured_are_not_taken(tmp_path: Path) -> None:
    armed: list[int] = []
    made(tmp_path, armed, "log").act(1, [finding(1)])
    assert armed == [] and not (tmp_path / "rank0").exists()
