"""Without the folder of msProbe's rules a pre-check writes our own table, and goes on from its journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from without_msprobe import copy_without_msprobe, run_command

DUMP = Path(__file__).parents[1] / "precheck" / "cases" / "replay" / "dump.json"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_without_msprobe(tmp_path_factory.mktemp("package"))


def check(package: Path, folder: Path, *more: object) -> tuple[int, str, str]:
    done = run_command(package, "acc_check", "-api_info", DUMP, "-o", folder, "-d", "cpu", *more)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.sampled(least=2, each=False, group="several processes with a framework")
def test_every_call_is_judged_and_a_run_goes_on_from_its_journal(package: Path, tmp_path: Path) -> None:
    status, _, said = check(package, tmp_path)
    assert status == 0, said
    assert {path.name.split("_")[0] for path in tmp_path.iterdir()} == {"precheck"}
    (journal,) = tmp_path.glob("precheck_*.jsonl")
    (table,) = tmp_path.glob("precheck_*.csv")
    whole = journal.read_text().splitlines(keepends=True)
    rows = table.read_text()
    journal.write_text("".join(whole[:5]) + whole[5][:40])
    assert check(package, tmp_path, "-csv_path", table)[0] == 0
    settings, *cases = journal.read_text().splitlines()
    assert json.loads(settings) == json.loads(whole[0])
    assert [json.loads(line)["name"] for line in cases] == [json.loads(line)["name"] for line in whole[1:]]
    assert table.read_text() == rows
