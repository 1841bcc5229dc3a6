"""Command lines of older releases of msProbe are answered with what to type, in one line and with status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.api.cli import ALIASES, COMMANDS, main
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


def test_what_is_to_be_typed_is_a_command() -> None:
    names = {*COMMANDS, *ALIASES}
    assert {word for sentence in ANSWERS.values() for word in sentence.partition("msprobe ")[2].split()[:1]} <= names


def test_the_framework_is_ignored_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, given in enumerate((["-f", "pytorch"], ["--framework", "mindspore"], ["-f=pytorch"], [])):
        # A mode that is there is no older one.
        mode = [] if given else ["-m", "auto"]
        assert main([*given, "compare", *mode, *PAIR, "-o", str(tmp_path / str(number))]) == 0
        said = capsys.readouterr()
        assert said.out.startswith("no divergence")
        assert ("each dump has its framework" in said.err) == bool(given) and said.err.count("\n") == bool(given)
    assert main(["-f", "pytorch", "run_ut", "-api_info", "dump.json", "-f"]) == 2
    assert "type: msprobe acc_check" in capsys.readouterr().err
    for wrong in (["-f", "tensorflow", "compare"], ["-f"], ["--framework=", "compare"]):
        assert main(wrong) == 2
        assert "names no framework" in capsys.readouterr().err
