"""The notebook in examples/ runs from its first cell to its last and shows what its text says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import probe

NOTEBOOK = Path(__file__).parents[3] / "examples" / "reading.ipynb"
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
nbformat.write(notebook, "done.ipynb")
"""


def shown(cell: dict[str, Any]) -> str:
    """All text of the outputs of a cell."""
    texts = []
    for output in cell["outputs"]:
        texts += [output["text"]] if "text" in output else [[*value, "\n"] for value in output["data"].values()]
    # What is printed may come in pieces that end anywhere.
    text = "".join(part for text in texts for part in text)
    # A notebook is a terminal with colours.
    return re.sub("\x1b\\[[0-9;]*m", "", text).replace("\r\n", "\n").rstrip("\n")


def test_it_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.sampled(least=1, each=False, group="pages")
def test_it_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    for needed in ("nbclient", "ipykernel", "polars"):
        pytest.importorskip(needed)
    modules = os.pathsep.join([str(Path(probe.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    # The package may not be installed.
    command = tmp_path / "bin" / "msprobe"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m probe.api.cli "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": modules, "PATH": path, "IPYTHONDIR": str(tmp_path / "ipython")}
    # In a process of its own: what the kernel's libraries warn of is not ours.
    call = [sys.executable, "-W", "ignore", "-c", RUN, str(NOTEBOOK)]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    _, ended, show, items, where, frame, verdict, cause = (shown(one) for one in cells if one["cell_type"] == "code")
    assert ended == "[0, 0]"
    assert show.startswith("no NaN and no infinity\n") and "Functional.layer_norm.0.forward  output.0" in show
    assert "Functional.layer_norm.0.forward.input.0 torch.float32 (4, 16)" in items
    assert "items</p><table" in where and "parameters_grad" not in where
    assert "0.weight" in frame or "weight" in frame
    assert "first divergence: step 0, process " in verdict and "Functional.layer_norm.0.forward" in verdict
    assert "eps is 0.01 and in the golden run 1e-05" in cause
