"""``--rules`` and its default in the environment: which names are allowed, and what the older flags stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

import probe
from probe.api import cli
from probe.api.rules import MSPROBE, NAMES, OLDER, PROBE, RULES, VARIABLE, WRITERS, rules_for, writer
from probe.common import log
from probe.common.errors import MsprobeException

CASES = Path(__file__).parents[2] / "compare" / "cases" / "identical_stat"
SIDES = CASES / "target", CASES / "golden"
PAIR = ["-tp", str(SIDES[0]), "-gp", str(SIDES[1])]
OF_MSPROBE = "by the rules of msProbe: "


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("flags", "variable", "is_msprobe"),
    [
        ([], "", False),
        ([], MSPROBE, True),
        ([], PROBE, False),
        (["--rules", PROBE], MSPROBE, False),
        (["--rules", MSPROBE], PROBE, True),
        (["--rules", OLDER], "", False),
        ([], OLDER, False),
    ],
)
def test_the_flag_counts_before_the_variable_and_older_names_stand_for_others(
    flags: list[str], variable: str, is_msprobe: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(VARIABLE, variable)
    log.reset()
    assert cli.main(["graph_visualize", *PAIR, "-o", str(tmp_path), *flags]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(OF_MSPROBE) == is_msprobe
    assert said.err.count(f"'{OLDER}'") == (OLDER in (*flags, variable))


def test_a_flag_of_older_releases_is_taken_alone_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("compare", "api_precision_compare"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        shown = capsys.readouterr().out
        assert "--rules" in shown and "--compat" not in shown and "--standard" not in shown
    assert cli.main(["compare", *PAIR, "--compat", "--rules", PROBE]) == 2
    assert "--rules" in capsys.readouterr().err


def test_the_older_flag_of_compare_stands_for_a_name(tmp_path: Path) -> None:
    case = CASES.parent / "missing_apis_stat"
    tables = []
    for number, flags in enumerate((["--compat"], ["--rules", MSPROBE], [])):
        out = tmp_path / str(number)
        assert cli.main(["compare", str(case / "target"), str(case / "golden"), "-o", str(out), *flags]) == 0
        (table,) = out.glob("*.csv")
        tables.append(table.read_text())
    assert tables[0] == tables[1] != tables[2]


@pytest.mark.parametrize("command", ["compare", "graph_visualize"])
def test_a_wrong_name_is_one_line_with_what_is_allowed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, named in ((["--rules", "mine"], "--rules"), ([], VARIABLE)):
        assert cli.main([command, *PAIR, "-o", str(tmp_path), *flags]) == 2
        said = capsys.readouterr().err
        assert all(f"{word}" in said for word in (named, "'mine'", *NAMES)) and said.count("\n") == 1
        monkeypatch.setenv(VARIABLE, "mine")
    assert list(tmp_path.iterdir()) == []


def test_rules_of_the_variable_are_not_called_those_of_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = ["-api_info", str(CASES / "target"), "--against", "details.csv", "-d", "cpu"]
    for name, command, said in (
        (MSPROBE, ["graph_visualize", *PAIR, "--fail-on", "divergence"], "MSPROBE_RULES=msprobe is set"),
        (MSPROBE, ["graph_visualize", *PAIR, "-lm"], "the rules msprobe"),
        (PROBE, ["acc_check", *dump], "MSPROBE_RULES=probe"),
    ):
        monkeypatch.setenv(VARIABLE, name)
        assert cli.main([*command, "-o", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert said in error and "--rules msprobe" not in error and error.count("\n") == 1


def test_each_location_of_the_table_exists() -> None:
    for question, (default, locations) in RULES.items():
        assert default in locations
        assert [rules_for(question, name) is None for name in locations] == [
            each is None for each in locations.values()
        ]
    assert all(callable(writer(file, "")) for file in WRITERS)


def test_python_takes_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        assert set(probe.verdict(*SIDES, rules=name).summaries[0].counts) == {"pass", "warning", "error"}
    monkeypatch.setenv(VARIABLE, MSPROBE)
    assert probe.graph_diff(*SIDES).answer[0].startswith(OF_MSPROBE)
    assert not probe.graph_diff(*SIDES, rules=PROBE).answer[0].startswith(OF_MSPROBE)
    with pytest.raises(MsprobeException, match="'mine'; allowed: probe, msprobe"):
        probe.verdict(*SIDES, rules="mine")
