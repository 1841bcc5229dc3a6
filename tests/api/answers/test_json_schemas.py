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
from exit_status_cases import Inputs, checkpoints, dump, monitored, packs
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


def analysed(folder: Path) -> list[str]:
    target, golden = runs.two_runs(folder, ["step0/rank0", "step0/rank1"])
    return ["-tp", str(target / "step0"), "-gp", str(golden / "step0"), "-da", "-o", str(folder / "out")]


def ranks(folder: Path) -> str:
    for rank in range(2):
        dump(folder / "run" / "step0" / f"rank{rank}")
    return str(folder / "run")


def merged(folder: Path) -> list[str]:
    merging = ["--rank_size", "2", "--tp", "2", "--pp", "1"]
    return [ranks(folder), "-o", str(folder / "out"), "--file_type", "json", *merging]


def launched(folder: Path) -> list[str]:
    (folder / "train.sh").write_text("export NCCL_ALGO=Ring\ntorchrun train.py\n")
    return ["-d", str(folder / "train.sh"), "-o", str(folder / "pack.zip")]


def logged(folder: Path) -> list[str]:
    (folder / "log").write_text("(T pid=1) {'actor_rollout_ref': {'actor': {'lr': 1e-06}}}\n")
    return ["-vc", str(folder / "log"), str(folder / "log"), "-o", str(folder / "out")]


def with_environment(folder: Path) -> list[str]:
    (folder / "environment_rank0.json").write_text('{"format": 1}')
    return ["--dump", str(folder)]


FORMS: dict[str, Inputs] = {
    "compare -da": analysed,
    "compare --ranks": lambda folder: ["--ranks", ranks(folder)],
    "show --timeline": lambda folder: [ranks(folder), "--timeline"],
    "graph_visualize --file_type json": merged,
    "config_check -d": launched,
    "config_check --rules msprobe": packs({"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}, "--rules", "msprobe"),
    "config_check of two logs": logged,
    "config_check of two checkpoints": lambda folder: [*checkpoints(1.0)(folder), "-o", str(folder / "out")],
    "ckpt_compare --fingerprint": lambda folder: [checkpoints(1.0)(folder)[0], "--fingerprint"],
    "monitor dump": monitored("dump", 1.0),
    "doctor --dump": with_environment,
}
"""What flags or inputs make a command print something else; forms that take long are in tests of these commands."""


@pytest.mark.parametrize("form", FORMS)
def test_the_form_that_a_flag_gives(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([form.split()[0], *FORMS[form](tmp_path), "--json"]) == 0
    hold_to_schema(json.loads(capsys.readouterr().out), form)
