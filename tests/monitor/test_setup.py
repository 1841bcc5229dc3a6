"""The configurations of both monitors: each key is checked, and a message names key, value and what is allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe.common.errors import MsprobeException
from probe.common.report.trends import TrendRow, TrendStep, TrendTable
from probe.monitor.output.tables import TableFiles, first_layout
from probe.monitor.schedule import Schedule, WatchedFile, switched_off
from probe.monitor.setup import first, second

WRONG = [
    ({"xy_distribution": 1}, '"xy_distribution" is 1; allowed: true, false'),
    ({"ops": "norm"}, '"ops" is "norm"; allowed: a list of'),
    ({"ops": ["nrm"]}, '"ops" has "nrm"; allowed:'),
    ({"eps": -1}, '"eps" is -1; allowed: a number from 0'),
    ({"ndigits": 0}, '"ndigits" is 0; allowed: whole numbers from 1'),
    ({"start_step": -1}, '"start_step" is -1; allowed: whole numbers from 0'),
    ({"step_interval": 0}, '"step_interval" is 0; allowed: whole numbers from 1'),
    ({"format": "xml"}, '"format" is "xml"; allowed: "csv", "tensorboard", "api"'),
    ({"module_ranks": ["a"]}, r'"module_ranks\[0\]" is "a"; allowed: whole numbers'),
    ({"targets": {"a": {"inputs": 1}}}, '"targets.a" is .*; allowed:'),
    ({"l2_targets": {"other": []}}, '"l2_targets.other" is .*; allowed: the hooks'),
    ({"sa_order": "b,h,s,d"}, '"sa_order" is "b,h,s,d"; allowed: "s,b,h,d", "b,s,h,d"'),
    ({"append_output": ["today"]}, '"append_output" is .*; allowed: an empty list, or two times'),
    ({"cc_distribution": {"enable": 1}}, '"cc_distribution.enable" is 1; allowed: true, false'),
    ({"rules": "other"}, '"rules" is "other"; allowed: "probe", "msprobe"'),
]


@pytest.mark.parametrize(("content", "message"), WRONG, ids=[next(iter(content)) for content, _ in WRONG])
def test_a_wrong_value_is_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(MsprobeException, match=message):
        first.load("config.json", content)


def test_an_unknown_key_is_a_warning_with_the_nearest(capfd: pytest.CaptureFixture[str]) -> None:
    first.load("config.json", {"xy_distributions": True})
    assert '"xy_distributions" is not a key of a monitor and has no effect; did you mean "xy_distribution"?' in (
        capfd.readouterr().err
    )


def test_the_rules_of_msprobe_round_and_leave_out_unknown_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSPROBE_RULES", "msprobe")
    settings = first.load("config.json", {"ops": ["std"]})
    assert (settings.ops, settings.ndigits, settings.as_msprobe) == (("norm",), 6, True)
    monkeypatch.delenv("MSPROBE_RULES")
    assert first.load("config.json", {}).ndigits is None


def test_the_second_configuration(tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match="allowed: the path of an existing folder"):
        second.load("v2.json", {"output_dir": str(tmp_path / "none")})
    settings = second.load("v2.json", {"output_dir": str(tmp_path), "monitors": {"param": {"enabled": True}}})
    assert settings.monitor("module").enabled
    assert settings.monitor("param").ops == ("min", "max", "mean", "norm", "nans")
    with pytest.raises(MsprobeException, match=r'"monitors\.param\.enabled" is 2; allowed: true, false'):
        second.load("v2.json", {"output_dir": str(tmp_path), "monitors": {"param": {"enabled": 2}}})


def test_the_schedule() -> None:
    ended: list[int] = []
    schedule = Schedule(2, 3, 2, finished=lambda: ended.append(1))
    collected = []
    for step in range(20):
        if schedule.wants(step):
            collected.append(step)
            schedule.collected(step)
    assert (collected, ended) == ([2, 5], [1])


def test_a_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    path, now, seen = tmp_path / "config.json", [0.0], []
    path.write_text("{}")
    watched = WatchedFile(str(path), lambda: seen.append(now[0]), lambda: now[0])
    path.write_text("{ }")
    import os

    os.utime(path, (1, 1))
    for now[0] in (0.5, 1.5, 1.6, 3.0):
        watched.look()
    assert seen == [1.5]


def test_one_key_is_switched_off_and_the_rest_is_kept() -> None:
    text = '{\n  "b": true,  "dynamic_on" : true,\n  "a": 1\n}'
    assert switched_off(text, "dynamic_on") == text.replace('"dynamic_on" : true', '"dynamic_on" : false')
    assert json.loads(switched_off(text, "dynamic_on"))["b"] is True


def test_a_torn_line_is_ended_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "actv_0-9.csv"
    path.write_text("vpp_stage,name,step,norm\n0,a,0,1.", encoding="utf-8")
    files = TableFiles(str(tmp_path), first_layout(10, None))
    table = TrendTable("actv", ("norm",), has_shape=False, rows=[TrendRow("b,c", 0, 0, [0.1], "", "")])
    files.write(TrendStep(1, [table], 1))
    files.close()
    assert path.read_text(encoding="utf-8").splitlines() == ["vpp_stage,name,step,norm", "0,a,0,1.", '0,"b,c",1,0.1']
