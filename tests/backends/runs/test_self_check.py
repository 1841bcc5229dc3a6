"""What ``msprobe doctor`` says of the framework that is there: that it works, or which part does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import forks
import pytest

from probe.api.commands.doctor import COLLECTING, READING
from probe.common.dump.frameworks import FRAMEWORKS

BREAK = """
import os, sys

class Break:
    def find_spec(self, name, path, target=None):
        # When what the framework consists of is there, and before anything of ours looks at it.
        if name == "probe.collect.session":
            sys.meta_path.remove(self)
            {how}

if sys.argv[:1] == ["-c"]:
    sys.meta_path.insert(0, Break())
"""


def doctor(folder: Path, how: str = "") -> tuple[int, list[str]]:
    """The status and the lines of the command; `how` is executed first in the process that tries the framework."""
    (folder / "sitecustomize.py").write_text(BREAK.format(how=how or "pass"), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{forks.CHECKOUT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "probe.api.cli", "doctor"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout.splitlines()


def said_of(backend: Any, lines: list[str]) -> str:
    module = FRAMEWORKS[backend.name].module
    return next(line for line in lines if line.split()[:1] == [module])


def test_a_framework_that_works_is_said_to_and_nothing_stays(backend: Any, tmp_path: Path) -> None:
    status, lines = doctor(tmp_path)
    text = r"imports in \d+\.\d s; a dump of \d\d records made and read in \d+\.\d s$"
    assert status == 0 and re.search(text, said_of(backend, lines)), lines
    assert {path.name for path in tmp_path.iterdir()} <= {"sitecustomize.py", "__pycache__"}


# A part of the adapter is missing, raises while it collects, or counts wrong; the framework itself is as it was.
ADAPTER = """
            import importlib
            from probe.backends import loader
            loaded = loader.load

            def load(name):
                adapter = loaded(name)
                {how}
                return adapter

            loader.load = load
"""


# Each imports the framework anew; what is looked for is the same code in every environment.
@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("return absent", f"{COLLECTING}: NameError: name 'absent' is not defined"),
        ("adapter.hooks.attach_modules = None", f"{COLLECTING}: TypeError: 'NoneType' object is not callable"),
        (
            "adapter.hooks.attach_apis = lambda *_: type('', (), {'remove': lambda _: None})()",
            "not recorded: Tensor.__pow__",
        ),
        (
            "known = loader.room(name, 'self_check').EXPECTED; known.update(dict.fromkeys(list(known)[:1], 7.0))",
            f"{READING}: records with wrong values: ",
        ),
    ],
    ids=["not made", "no hooks", "calls not seen", "another number"],
)
def test_a_part_of_the_tool_that_fails_is_found(backend: Any, tmp_path: Path, how: str, said: str) -> None:
    status, lines = doctor(tmp_path, ADAPTER.format(how=how))
    text = said_of(backend, lines)
    assert status == 1 and "BROKEN: " in text and said in text, lines
