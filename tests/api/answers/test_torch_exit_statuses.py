"""The exit statuses of the commands that run calls of PyTorch again; see ``test_exit_statuses.py``."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from exit_status_cases import case_of, cases
from exit_statuses import check
from planted_kernels import FAULTS, planted


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
