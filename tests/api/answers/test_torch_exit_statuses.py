"""The exit statuses of the commands that run calls of PyTorch again; see ``test_exit_statuses.py``."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch
from exit_status_cases import case_of, cases, dump
from exit_statuses import check
from planted_kernels import FAULTS, planted
from printed_json import hold_to_schema

from probe.api.cli import main


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("command", "situation"), cases("torch"))
def test_the_status_is_that_of_the_table(
    command: str,
    situation: str,
    as_json: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = contextlib.nullcontext()
    if case_of(command, situation).is_faulty:
        fault = planted(torch.nn.functional, "silu", FAULTS["every element 5 % high"])
    with fault:
        check(command, situation, as_json, tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(("command", "processes"), [("acc_check", "--jobs"), ("multi_acc_check", "-n")])
def test_json_of_several_dumps_is_a_list(
    command: str, processes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        dump(tmp_path / "run" / "step0" / f"rank{rank}")
    paths = ["-api_info", str(tmp_path / "run"), "-o", str(tmp_path / "out")]
    assert main([command, *paths, "-d", "cpu", processes, "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    hold_to_schema(printed, f"{command} of several dumps")
    assert len(printed) == 2
