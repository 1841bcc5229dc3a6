"""``--rules`` and its default in the environment: which names are allowed, and what the older flags stand for."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import probe
from probe.api import cli
from probe.api.commands import arguments
from probe.api.questions.rules import (
    MSPROBE,
    NAMES,
    OLDER,
    PROBE,
    RULES,
    VARIABLE,
    WRITERS,
    case_rules,
    chosen,
    graph_rules,
    rules_for,
    writer,
)
from probe.common import log
from probe.common.errors import MsprobeException
from probe.graph.rules.probe import PROBE_GRAPH
from probe.msprobe_rules.compare.v26_2 import V26_2_ROWS

CASES = Path(__file__).parents[2] / "compare" / "cases" / "identical_stat"
SIDES = ["-tp", str(CASES / "target"), "-gp", str(CASES / "golden")]


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_taken_from_the_flag_before_the_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    assert chosen(None, PROBE) == name
    assert [chosen(other, PROBE) for other in NAMES] == list(NAMES)


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert chosen(None, MSPROBE) == MSPROBE


def test_a_wrong_name_is_an_error_that_names_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MsprobeException) as raised:
        chosen("mine", PROBE)
    assert str(raised.value) == "rules is 'mine'; allowed: probe, msprobe."
    monkeypatch.setenv(VARIABLE, "mine")
    with pytest.raises(MsprobeException) as raised:
        chosen(None, PROBE)
    assert str(raised.value) == "MSPROBE_RULES is 'mine'; allowed: probe, msprobe."


@pytest.mark.parametrize("command", ["compare", "graph_visualize"])
def test_a_wrong_name_ends_a_command_with_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, *SIDES, "-o", str(tmp_path), "--rules", "mine"]) == 2
    said = capsys.readouterr().err
    assert "'mine'" in said and all(name in said for name in NAMES) and said.count("\n") == 1
    monkeypatch.setenv(VARIABLE, "mine")
    assert cli.main([command, *SIDES, "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (f"msprobe {command}: MSPROBE_RULES is 'mine'; allowed: probe, msprobe.\n")
    assert list(tmp_path.iterdir()) == []


def test_rules_of_the_variable_are_not_called_those_of_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = ["-api_info", str(CASES / "target"), "--against", "details.csv", "-d", "cpu"]
    for name, command, said in (
        (MSPROBE, ["graph_visualize", *SIDES, "--fail-on", "divergence"], "MSPROBE_RULES=msprobe is set"),
        (MSPROBE, ["graph_visualize", *SIDES, "-lm"], "the rules msprobe match as msProbe does"),
        (PROBE, ["acc_check", *dump], "compared with the drop-in tables, and MSPROBE_RULES=probe writes none"),
    ):
        monkeypatch.setenv(VARIABLE, name)
        assert cli.main([*command, "-o", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert said in error and "--rules msprobe" not in error and error.count("\n") == 1


def test_the_older_name_is_answered_and_stands_for_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"is '{OLDER}', and these rules are no more: the default, 'probe', is used.\n"
    for command in (["compare", *SIDES], ["graph_visualize", *SIDES]):
        log.reset()
        assert cli.main([*command, "-o", str(tmp_path / "out"), "--rules", OLDER]) == 0
        error = capsys.readouterr().err
        assert said in error and error.count(OLDER) == 1
    monkeypatch.setenv(VARIABLE, OLDER)
    assert chosen(None, MSPROBE) == MSPROBE and rules_for("rows", None) is None


def test_older_flags_mean_names() -> None:
    parser = argparse.ArgumentParser()
    group = arguments.add_rules(parser, "judge")
    arguments.add_compat(group)
    arguments.add_standard(group)
    given = {
        "--compat": MSPROBE,
        "--standard=documented": OLDER,
        "--standard=26.2": MSPROBE,
        "--rules=probe": PROBE,
    }
    assert {text: parser.parse_args([text]).rules for text in given} == given
    assert parser.parse_args([]).rules is None
    assert "--compat" not in parser.format_help() and "--standard" not in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--compat", "--rules", "probe"])


def test_each_question_has_the_rules_of_a_name() -> None:
    assert [rules_for("rows", name) for name in (None, *NAMES)] == [None, None, V26_2_ROWS]
    assert graph_rules(None) == graph_rules(PROBE) == (PROBE_GRAPH, None)
    assert graph_rules(MSPROBE)[0].name == MSPROBE and graph_rules(MSPROBE)[1] is V26_2_ROWS
    names = [rules and rules.name for rules in map(case_rules, (None, PROBE, MSPROBE))]
    assert names == [PROBE, None, MSPROBE]
    assert rules_for("anomalies", PROBE) is None and rules_for("anomalies", None) is not None


def test_each_location_of_the_table_exists() -> None:
    for question, (default, locations) in RULES.items():
        assert default in locations
        assert [rules_for(question, name) is None for name in locations] == [
            each is None for each in locations.values()
        ]
    assert all(callable(writer(file, "")) for file in WRITERS)


def test_python_takes_the_same_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sides = CASES / "target", CASES / "golden"
    for name in NAMES:
        assert set(probe.verdict(*sides, rules=name).summaries[0].counts) == {"pass", "warning", "error"}
    monkeypatch.setenv(VARIABLE, MSPROBE)
    assert probe.graph_diff(*sides).answer[0].startswith("by the rules of msProbe: ")
    assert not probe.graph_diff(*sides, rules=PROBE).answer[0].startswith("by the rules of msProbe: ")
    with pytest.raises(MsprobeException, match="rules is 'mine'; allowed: probe, msprobe"):
        probe.verdict(*sides, rules="mine")
