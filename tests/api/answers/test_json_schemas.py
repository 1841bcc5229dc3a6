"""What ``--json`` prints is what the documentation has: `docs/json_schemas.py`, and forms that a flag gives.

The forms without a flag are held to the schema by the tests of exit statuses.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import runs
from exit_status_cases import dump
from printed_json import hold_to_schema

from probe.api.cli import COMMANDS, command_named, main
from probe.api.commands.question import CommandGroup, Question


@pytest.mark.skipif(sys.version_info < (3, 10), reason="the script needs the unions of Python 3.10")
def test_the_schema_and_the_page_are_those_of_the_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "docs"))
    script = importlib.import_module("json_schemas")
    for path, text in script.files():
        assert path.read_text(encoding="utf-8") == text, f"python docs/json_schemas.py writes {path.name} anew"
    printing = {name for name in COMMANDS if isinstance(command_named(name), (Question, CommandGroup))}
    assert {title.split()[0] for title in script.PRINTED} == printing


@pytest.mark.parametrize("form", ["compare -da", "compare --ranks", "show --timeline", "config_check -d"])
def test_the_form_that_a_flag_gives(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments_of(form, tmp_path), "--json"]) == 0
    hold_to_schema(json.loads(capsys.readouterr().out), form)


def arguments_of(form: str, folder: Path) -> list[str]:
    command, flag = form.split()
    if form == "config_check -d":
        (folder / "train.sh").write_text("export NCCL_ALGO=Ring\ntorchrun train.py\n")
        return [command, flag, str(folder / "train.sh"), "-o", str(folder / "pack.zip")]
    if form == "compare -da":
        runs.two_runs(folder, ["step0/rank0", "step0/rank1"])
        paths = ["-tp", str(folder / "target" / "step0"), "-gp", str(folder / "golden" / "step0")]
        return [command, *paths, flag, "-o", str(folder / "out")]
    for rank in range(2):
        dump(folder / "run" / "step0" / f"rank{rank}")
    return [command, *([str(folder / "run"), flag] if command == "show" else [flag, str(folder / "run")])]
