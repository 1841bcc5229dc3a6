"""``msprobe graph_visualize`` as tests call it, and runs that are copies of a recorded dump."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from graph_dumps import CASES

from probe.api.cli import main
from probe.common.dump.layout import PROCESS_FILE

DUMPS = CASES / "dumps"
WEIGHT, LLAMA = str(DUMPS / "llama_weight"), str(DUMPS / "llama")
FIRST = "Functional.linear.12.forward"
"""The first divergence of WEIGHT beside LLAMA."""
IN_WORDS = f"first divergence: model.layers.1.mlp.up_proj (Linear), {FIRST}"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0) -> list[str]:
    """Run the command; returns the lines that it prints."""
    assert main(["graph_visualize", *map(str, arguments)]) == status
    return capsys.readouterr().out.splitlines()


def run_of(folder: Path, names: list[str], *, of: str = "llama") -> Path:
    """A run with these folders, such as ``step0/rank1``, each with the same dump."""
    for name in names:
        shutil.copytree(DUMPS / of, folder / name)
    return folder


def of_one_run(path: Path) -> None:
    """Say of all processes below `path` that they are of one run, in the order of their numbers."""
    for folder in path.rglob("dump.json"):
        number = int("".join(filter(str.isdigit, folder.parent.name)) or 0)
        (folder.parent / PROCESS_FILE).write_text(json.dumps({"run": "a", "order": [number]}), encoding="utf-8")
