"""``msprobe graph_visualize`` as tests call it, and runs that are copies of a recorded dump."""

from __future__ import annotations

import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from graph_dumps import CASES
from written_pages import WrittenPage

import probe
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


class Beside:
    """A dump alone, or two beside each other: the graphs, and what the page says of each node by its name."""

    def __init__(self, folder: Path, *paths: str | Path, **options: Any) -> None:
        self.view = probe.graph_diff(*paths, **options)
        self.diff, *_ = self.view.diffs
        folder.mkdir(parents=True, exist_ok=True)
        self.page = WrittenPage(Path(self.view.to_html(folder / "page.html")))
        self.manifest = self.page.manifest
        self.info: dict[str, Any] = self.manifest["comparisons"][0]
        self.rows, self.details = self.page.rows(), self.page.details()
        self.row = {name: row for row, (name, _) in enumerate(self.rows) if name is not None}

    @cached_property
    def pairs(self) -> dict[str, str]:
        """The golden run's node of each node that has one."""
        return {target: golden for target, golden in self.rows if target is not None and golden is not None}

    @property
    def alone(self) -> list[str]:
        """The nodes of the target without a partner."""
        return [target for target, golden in self.rows if target is not None and golden is None]

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows that have each status."""
        return dict(zip((status["name"] for status in self.manifest["statuses"]), self.info["counts"]))

    def status(self, name: str) -> str:
        found: str = self.manifest["statuses"][self.page.column("status")[self.row[name]]]["name"]
        return found

    def reason(self, name: str) -> str:
        """Why a node and its partner are a pair."""
        found: str = self.manifest["reasons"][self.page.column("reason")[self.row[name]]]
        return found

    def why(self, name: str) -> str:
        found: str = self.details[self.row[name]].get("why", "")
        return found
