"""What reading.md prints is what its script and its commands give, but for numbers and paths of a machine."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import probe
from probe.api import cli

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "reading.md").read_text(encoding="utf-8")
SCRIPT, *PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"```console\n\$ msprobe (show .*?)\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the script of the page was run."""
    folder = tmp_path_factory.mktemp("reading")
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    path = os.pathsep.join([str(Path(probe.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(autouse=True)
def inside(collected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(collected)


def comparable(text: str) -> Iterator[str]:
    """The lines without the numbers of processes, folders of sources, and what statistics are exactly."""
    for line in text.splitlines():
        short = re.sub(r"proc\d+", "proc", re.sub(r"File \S*/", "File ", line))
        yield " ".join(re.sub(r"-?\d+\.\d+", "0.0", word) for word in short.split())


@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_command_prints_what_the_page_says(
    command: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(shlex.split(command)) == 0
    assert [*comparable(capsys.readouterr().out)] == [*comparable(expected)]


def test_the_python_of_the_page_runs_and_gives_what_its_comments_say(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("polars")
    exec("\n".join(PYTHON), {})
    lines = capsys.readouterr().out.splitlines()
    for said in re.findall(r"print\(.*\)  +# (.*)", "\n".join(PYTHON)):
        if "(" in said or "[" in said or said.startswith(("Module.", "pytorch")):
            assert said in lines
    assert "first divergence: Functional.linear.0.forward" in lines
