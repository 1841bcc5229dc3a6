"""Command lines of older releases of msProbe are answered with what to type, in one line and with status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.api.cli import COMMANDS, main
from probe.api.commands.older import ANSWERS

CASE = Path(__file__).parents[2] / "compare" / "cases" / "identical_stat"
PAIR = ["-tp", str(CASE / "target"), "-gp", str(CASE / "golden")]


@pytest.mark.parametrize(("command", "flags", "value"), ANSWERS)
def test_a_command_of_an_older_release_is_one_line(
    command: str, flags: tuple[str, ...], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in flags or [""]:
        for given in [flag, value], [f"{flag}={value}" if flags else ""]:
            assert main([command, "-o", "x", *filter(None, given)]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert ANSWERS[command, flags, value] in line


@pytest.mark.parametrize("sentence", ANSWERS.values())
def test_what_is_to_be_typed_is_a_command(sentence: str) -> None:
    names = {name for command in COMMANDS for name in (command.name, *command.aliases)}
    typed = sentence.partition("msprobe ")[2].split()[:1]
    assert set(typed) <= names


@pytest.mark.parametrize("given", [["-f", "pytorch"], ["--framework", "mindspore"], ["-f=pytorch"]])
def test_the_framework_is_ignored_with_a_line(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*given, "compare", *PAIR, "-o", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("no divergence")
    assert "each dump has its framework" in said.err and said.err.count("\n") == 1
    assert list(tmp_path.glob("compare_result_*.csv"))


def test_the_framework_before_an_older_command_does_not_hide_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-f", "pytorch", "run_ut", "-api_info", "dump.json", "-f"]) == 2
    assert "type: msprobe acc_check" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["-f", "tensorflow", "compare"], ["-f"], ["--framework=", "compare"]])
def test_another_framework_is_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    assert "names no framework" in capsys.readouterr().err


def test_a_mode_that_is_there_is_no_older_one(tmp_path: Path) -> None:
    assert main(["compare", "-m", "auto", *PAIR, "-o", str(tmp_path)]) == 0
