"""The configurations of both monitors: each key is checked, and a message names key, value and what is allowed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from probe.common.errors import MsprobeException
from probe.common.report.trends import TrendRow, TrendStep, TrendTable
from probe.monitor import settings as first
from probe.monitor import settings as second
from probe.monitor.alerts.actions import ALERTS, Alerts, LearnedRules
from probe.monitor.alerts.rows import Finding
from probe.monitor.schedule import Schedule, WatchedFile, switched_off
from probe.monitor.settings import AlertSettings
from probe.monitor.tables import TableFiles, first_layout


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"xy_distribution": 1}, ['"xy_distribution" is 1', "true, false"]),
        ({"ops": "norm"}, ['"ops" is "norm"', "a list of"]),
        ({"ops": ["nrm"]}, ['"ops" has "nrm"', "allowed:"]),
        ({"eps": -1}, ['"eps" is -1', "from 0"]),
        ({"ndigits": 0}, ['"ndigits" is 0', "from 1"]),
        ({"start_step": -1}, ['"start_step" is -1', "from 0"]),
        ({"step_interval": 0}, ['"step_interval" is 0', "from 1"]),
        ({"format": "xml"}, ['"format" is "xml"', '"csv", "tensorboard", "api"']),
        ({"module_ranks": ["a"]}, ['"module_ranks[0]" is "a"', "whole numbers"]),
        ({"targets": {"a": {"inputs": 1}}}, ['"targets.a" is', "allowed:"]),
        ({"l2_targets": {"other": []}}, ['"l2_targets.other" is', "the hooks"]),
        ({"sa_order": "b,h,s,d"}, ['"sa_order" is "b,h,s,d"', '"s,b,h,d", "b,s,h,d"']),
        ({"append_output": ["today"]}, ['"append_output" is', "an empty list, or two times"]),
        ({"cc_distribution": {"enable": 1}}, ['"cc_distribution.enable" is 1', "true, false"]),
        ({"rules": "other"}, ['"rules" is "other"', '"probe", "msprobe"']),
        ({"alert": []}, ['"alert" is a list of 0', "an object"]),
        ({"alert": {"rules": "AnomalyNan"}}, ['"alert.rules" is "AnomalyNan"', "a list"]),
        ({"alert": {"dump": 1}}, ['"alert.dump" is 1', "true, false"]),
        ({"alert": {"actions": ["log", "mail"]}}, ['"alert.actions[1]" is "mail"', '"log", "file", "stop", "dump"']),
        ({"alert": {"dump_times": 0}}, ['"alert.dump_times" is 0', "from 1"]),
        ({"alert": {"min_history": True}}, ['"alert.min_history" is true']),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(content: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(MsprobeException) as error:
        first.load_first("config.json", content)
    assert all(part in str(error.value) for part in parts), error.value


def test_an_unknown_key_is_a_warning_with_the_nearest_and_msprobes_rules_round(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first.load_first("config.json", {"xy_distributions": True})
    said = capfd.readouterr().err
    assert '"xy_distributions"' in said and 'did you mean "xy_distribution"' in said
    assert first.load_first("config.json", {}).ndigits is None
    monkeypatch.setenv("MSPROBE_RULES", "msprobe")
    settings = first.load_first("config.json", {"ops": ["std"]})
    assert (settings.ops, settings.ndigits, settings.as_msprobe) == (("norm",), 6, True)


def test_the_second_configuration(tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match="allowed: the path of an existing folder"):
        second.load_second("v2.json", {"output_dir": str(tmp_path / "none")})
    settings = second.load_second("v2.json", {"output_dir": str(tmp_path), "monitors": {"param": {"enabled": True}}})
    assert settings.monitor("module").enabled
    assert settings.monitor("param").ops == ("min", "max", "mean", "norm", "nans")
    with pytest.raises(MsprobeException, match=r'"monitors\.param\.enabled" is 2; allowed: true, false'):
        second.load_second("v2.json", {"output_dir": str(tmp_path), "monitors": {"param": {"enabled": 2}}})


def test_steps_are_chosen_and_a_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    ended: list[int] = []
    schedule = Schedule(2, 3, 2, finished=lambda: ended.append(1))
    collected = []
    for step in range(20):
        if schedule.wants(step):
            collected.append(step)
            schedule.collected(step)
    assert (collected, ended) == ([2, 5], [1])
    path, now, seen = tmp_path / "config.json", [0.0], []
    path.write_text("{}")
    watched = WatchedFile(str(path), lambda: seen.append(now[0]), lambda: now[0])
    path.write_text("{ }")
    os.utime(path, (1, 1))
    for now[0] in (0.5, 1.5, 1.6, 3.0):
        watched.look()
    assert seen == [1.5]
    text = '{\n  "b": true,  "dynamic_on" : true,\n  "a": 1\n}'
    assert switched_off(text, "dynamic_on") == text.replace('"dynamic_on" : true', '"dynamic_on" : false')


def test_actions_are_taken_where_they_are_configured_and_a_failure_is_logged_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    armed: list[int] = []
    seen: list[int] = []

    def made(folder: str, *actions: str) -> Alerts:
        settings = AlertSettings(actions=actions)
        return Alerts(settings, LearnedRules(), 0, str(tmp_path / folder), armed.append, armed.append)

    def finding(step: int) -> Finding:
        return Finding("head", "actv", step, 0, "spike", "norm", float("inf"), "less", "it is large")

    def callback(found: Any) -> None:
        seen.append(found[0].step)
        raise RuntimeError("of the user")

    made("quiet", "log").act(1, [finding(1)])
    assert armed == [] and not (tmp_path / "quiet").exists()
    actions = made("rank0", "log", "file", "dump")
    actions.callbacks.append(callback)
    capsys.readouterr()
    for step in (3, 4):
        actions.act(step, [finding(step)] * 7)
    assert (armed, seen) == ([3], [3, 4])
    lines = (tmp_path / "rank0" / ALERTS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3] * 7 + [4] * 7
    printed = capsys.readouterr().err
    assert printed.count("of the user") == 1
    assert "step 3, rank 0: head (actv)" in printed and "2 more rows of step 3" in printed


def test_a_torn_line_is_ended_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "actv_0-9.csv"
    path.write_text("vpp_stage,name,step,norm\n0,a,0,1.", encoding="utf-8")
    files = TableFiles(str(tmp_path), first_layout(10, None))
    table = TrendTable("actv", ("norm",), has_shape=False, rows=[TrendRow("b,c", 0, 0, [0.1], "", "")])
    files.write(TrendStep(1, [table], 1))
    files.close()
    assert path.read_text(encoding="utf-8").splitlines() == ["vpp_stage,name,step,norm", "0,a,0,1.", '0,"b,c",1,0.1']
