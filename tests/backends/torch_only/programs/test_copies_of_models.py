"""Copies of a model that were made while collecting need nothing of the tool."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

LOADS = """
import sys
sys.modules["probe"] = None  # as where it is not installed
import torch
model = torch.load(sys.argv[1], weights_only=False)
print(model(torch.ones(1, 4)).detach().tolist())
"""


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_model_that_was_saved_is_loaded_where_the_tool_is_not(runs: Any, tmp_path: Path, level: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    expected = model(torch.ones(1, 4)).detach().tolist()
    debugger = runs.new(level=level)
    debugger.start(model)
    torch.save(model, tmp_path / "model.pt")
    debugger.stop()
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path / "model.pt")], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout.strip(), done.returncode) == (str(expected), 0), done.stderr


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_copy_holds_nothing_of_the_tool(runs: Any, level: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    debugger = runs.new(level=level)
    debugger.start(model)
    copied = copy.deepcopy(model)
    stream = io.BytesIO()
    torch.save(copied, stream)
    debugger.stop()
    assert b"probe" not in stream.getvalue()
    for module in copied.modules():
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            assert not type(hook).__module__.startswith("probe")
