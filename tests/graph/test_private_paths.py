"""What ``--strip_paths`` leaves of the paths of this machine in anything that is written: nothing."""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from graph_dumps import call, tensor
from made_dumps import written
from written_pages import WrittenPage

from probe.api.questions.rules import writer
from probe.compare.options import Options
from probe.graph.options import HTML, JSON, MODEL_EXPLORER, GraphOptions
from probe.graph.run import GraphReport, planned, show

NAMES = ["Functional.linear.0.forward", "Functional.relu.0.forward", "Functional.tanh.0.forward"]


def _run(folder: Path, secret: Path, norm: float, kind: str, names: list[str]) -> Path:
    """A dump whose stacks, arguments and place hold the path `secret`."""
    frames = [
        "File /opt/env/lib/python3.11/site-packages/torch/nn/functional.py, line 4, in linear, \n y",
        f"File {secret}/train/model.py, line 3, in forward, \n hidden = linear(hidden)",
        f"File {secret}/main.py, line 5, in main, \n z",
    ]
    argument = {"type": "str", "value": f"{secret}/{kind}.bin"}
    records = dict.fromkeys(names, call(tensor(), argument, output=tensor(norm)))
    written(folder / "step0" / "rank0", records, None, {"0": [names, frames]})
    # One rank that the other run does not have.
    written(folder / "step0" / "rank1", records, None, {"0": [names, frames]})
    return folder


def _everything(found: GraphReport) -> str:
    """All that the files hold, unpacked."""
    texts = []
    for path in map(Path, found.files):
        if path.suffix == ".html":
            page = WrittenPage(path)
            texts += [page.text, json.dumps(page.manifest), *map(_unpacked, page.packed.values())]
        elif path.suffix == ".db":
            texts += _rows(path)
        else:
            texts.append(path.read_text(encoding="utf-8"))
    assert len(found.files) == 5
    return "\n".join([*texts, *found.verdict, *found.unpaired, *found.left_out]).replace("\\/", "/")


def _unpacked(block: str) -> str:
    # With the letters that JSON writes as numbers.
    return gzip.decompress(base64.b64decode(block)).decode().replace("\\u0027", "'")


def _rows(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        tables: list[Any] = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return [str(row) for (table,) in tables for row in connection.execute(f"SELECT * FROM {table}")]
    finally:
        connection.close()


def _shown(tmp_path: Path, *prefixes: str) -> tuple[str, Path]:
    secret = tmp_path / "someone's home"
    target = _run(secret / "target", secret, 9.0, "mine", NAMES)
    golden = _run(secret / "golden", secret, 1.0, "other", NAMES[:2])
    (golden / "step0" / "rank1").rename(golden / "step0" / "rank2")
    options = GraphOptions(Options(), strip_paths=prefixes)
    formats = (HTML, "db", JSON, MODEL_EXPLORER)
    plan, others = planned([str(target)], [str(golden)], options), {"db": writer("db", "--format db")}
    found = show(plan, str(tmp_path / "out"), formats, others=others)
    return _everything(found), secret


def test_without_the_option_paths_are_shown(tmp_path: Path) -> None:
    text, secret = _shown(tmp_path)
    assert f"{secret}/train/model.py:3 in " in text


@pytest.mark.parametrize("kind", ["auto", "all", "prefix"])
def test_nothing_that_is_written_holds_the_path(tmp_path: Path, kind: str) -> None:
    text, secret = _shown(tmp_path, str(tmp_path / "someone's home") if kind == "prefix" else kind)
    assert str(tmp_path) not in text
    assert "someone's home" not in text
    assert secret.name not in text
    # The source lines are those of stacks.
    assert ("hidden = linear" in text) == (kind != "all")
    assert (" train/model.py:3 in " in text) == (kind != "all")
    # What is shown still tells the runs from each other.
    assert "target/step0/rank0" in text and "golden/step0/rank0" in text


def test_runs_of_one_name_stay_apart(tmp_path: Path) -> None:
    runs = [str(_run(tmp_path / place / "run", tmp_path, 1.0, "mine", NAMES)) for place in ("one", "two", "golden")]
    options = GraphOptions(Options(), strip_paths=("auto",))
    plan = planned(runs[:2], runs[2:], options)
    assert {task.location.run_name for task in plan.tasks} == {"run", "run (2)"}
