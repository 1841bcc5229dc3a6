"""Runs a command of the table of exit statuses, and checks what it answers, where, and with which status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import msprobe
from exit_status_cases import Case, case_of
from printed_json import hold_to_schema
from scripts import CHECKOUT

from probe.api.cli import COMMANDS, command_named, main
from probe.api.commands.question import Question

ANSWER_NOTHING = {name for name in COMMANDS if not isinstance(command_named(name), Question)}
"""Commands whose standard output is not theirs, and which have no ``--json``."""


def own_process(case: Case, arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """The status and the output of a command in a process of its own."""
    path = os.pathsep.join([*([str(folder / case.path)] if case.path else []), CHECKOUT])
    done = msprobe(*arguments, folder=Path(CHECKOUT), PYTHONPATH=path)
    return done.returncode, done.stdout, done.stderr


def check(
    command: str,
    situation: str,
    as_json: bool,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run one case, and hold its status and its output to the table."""
    case = case_of(command, situation)
    arguments = [command, *case.inputs(folder), *(["--json"] if as_json else [])]
    if situation == "interrupted" and not case.own_process:

        def interrupted(*args: object, **kwargs: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(case.interrupt, interrupted)
    capsys.readouterr()
    if case.own_process:
        status, out, err = own_process(case, arguments, folder)
    else:
        status = main(arguments)
        out, err = capsys.readouterr()
    assert status == case.status, out + err
    assert case.message in err
    messages = [line for line in err.splitlines() if line.startswith(f"msprobe {command}")]
    if command not in ANSWER_NOTHING:
        assert len(messages) == (status >= 2) and "Traceback" not in err
    assert not any(message in out for message in messages) or as_json
    if as_json:
        found = json.loads(out)
        hold_to_schema(found, "monitor report" if command == "monitor" else command)
        if isinstance(found, list):
            return
        errors = [message.partition(": ")[2] for message in messages]
        assert (found["command"], found["status"], found["errors"]) == (command, status, errors)
        assert type(found["version"]) is int
