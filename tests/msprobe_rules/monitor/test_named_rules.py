"""msProbe's two rules, over the rows of a run that msProbe recorded."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.api.rules import monitor_rules
from probe.common.errors import MsprobeException
from probe.monitor.alerts.rows import FamilyRows, Finding
from probe.monitor.monitor_run import MonitorRun, read_monitor
from probe.monitor.settings import AlertSettings
from probe.msprobe_rules.monitor import (
    ANALYSIS,
    NAN,
    TURBULENCE,
    AnomalyFile,
    NamedRule,
    NamedRules,
    analyse,
    read_anomalies,
)

CASE = Path(__file__).parents[2] / "monitor" / "cases" / "v1_alert"
RULES = [NamedRule(NAN), NamedRule(TURBULENCE, 0.5)]
# The order of execution of a step: gradients of parameters come between those of activations.
CALLS = {
    "actv": [0, 1, 2, 3],
    "grad_unreduced": [4, 7, 8],
    "actv_grad": [5, 6, 9, 10],
    "grad_reduced": [11, 12, 13],
}
# Means of about 1e-10, which the recorded tables have rounded to zero.
ROUNDED = ("head.output:0/rank0/actv_grad", "head.weight/")


def steps_of(run: MonitorRun) -> list[list[FamilyRows]]:
    found = []
    for step in run.steps:
        rows = run.rows(0, step)
        found.append([_with_calls(each) for each in rows])
    return found


def _with_calls(rows: FamilyRows) -> FamilyRows:
    return replace(rows, calls=np.array(CALLS[rows.family]))


def judged(rules: NamedRules) -> list[Finding]:
    found: list[Finding] = []
    for rows in steps_of(read_monitor(str(CASE))):
        found += rules.judge(rows)
    return found


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads((CASE / "anomaly_detected/rank0/anomaly.json").read_text())


def test_the_recorded_anomalies_are_found(recorded: dict[str, Any], tmp_path: Path) -> None:
    file = AnomalyFile(str(tmp_path), 0, overwrites=True)
    file.add(judged(NamedRules(RULES, is_exact=True)))
    written = read_anomalies(file.path)

    def compared(entries: dict[str, Any]) -> dict[str, Any]:
        return {key: each for key, each in entries.items() if not any(part in key for part in ROUNDED)}

    mine, theirs = compared(written), compared(recorded)
    assert set(mine) == set(theirs)
    assert len(theirs) == 33
    for key, entry in theirs.items():
        assert {**mine[key], "message": ""} == {**entry, "message": ""}
        said, expected = _numbers(mine[key]["message"]), _numbers(entry["message"])
        assert said[0] == expected[0]
        # The tables have eight decimals.
        for value, wanted in zip(said[1:], expected[1:]):
            assert math.isnan(wanted) == math.isnan(value) and (
                math.isnan(wanted) or math.isclose(value, wanted, rel_tol=1e-3, abs_tol=1e-8)
            )


def _numbers(message: str) -> tuple[str, float, float]:
    head, _, rest = message.partition(", current value ")
    value, _, history = rest.rstrip(".").partition(", history mean ")
    return head, float(value), float(history)


def test_the_recorded_analysis_is_written(tmp_path: Path) -> None:
    path = analyse(str(CASE / "anomaly_detected"), str(tmp_path), 4)
    expected = json.loads((CASE / "anomaly_detected" / ANALYSIS).read_text())
    assert list(json.loads(Path(path).read_text()).items()) == list(expected.items())
    assert len(expected) == 4


def test_as_we_have_them_tiny_means_are_silent() -> None:
    """msProbe reports 30 rows in steps 1 to 4, before five steps are known; ours reports those of step 5."""
    found = judged(NamedRules(RULES))
    assert {each.step for each in found} == {5}
    assert not any(each.family == "actv" for each in found if each.rule == NAN)
    # 0.0506 after an average of 0.0324: more than half as large again, as the threshold says.
    assert [(each.name, each.op) for each in found if each.rule == TURBULENCE] == [("head.output", "mean")]


def test_a_missing_gradient_is_judged_as_msprobe_does_and_not_by_default() -> None:
    rows = FamilyRows(
        "actv_grad", ("tok.input", "tok.output"), ("norm",), np.array([[np.nan], [1.0]]), judged=np.array([False, True])
    )
    assert [each.name for each in NamedRules(RULES, is_exact=True).judge([rows])] == ["tok.input"]
    assert NamedRules(RULES).judge([rows]) == []


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (["Nan"], '"alert.rules[0].rule_name" is "Nan"; allowed: "AnomalyTurbulence", "AnomalyNan"'),
        (["AnomalyNan", 3], '"alert.rules[1]" is 3; allowed: an object with "rule_name" and "args", or a name'),
        (["AnomalyTurbulence"], '"alert.rules[0].args.threshold" is missing'),
        ([{"rule_name": "AnomalyNan", "args": {"threshold": "x"}}], '"alert.rules[0].args.threshold" is "x"'),
    ],
)
def test_a_rule_that_is_wrong_is_named(rules: list[Any], words: str) -> None:
    with pytest.raises(MsprobeException) as error:
        monitor_rules(AlertSettings(tuple(rules)), "config.json", False)
    assert words in str(error.value)


def test_a_configuration_chooses_between_these_rules_and_the_learned_ones() -> None:
    assert monitor_rules(AlertSettings(), "config.json", False) is None
    turbulence = {"rule_name": "AnomalyTurbulence", "args": {"threshold": 1}}
    assert isinstance(monitor_rules(AlertSettings(("AnomalyNan", turbulence)), "config.json", False), NamedRules)
