"""Running recorded cases within pytest, for the ``test_<framework>_cases.py`` of this folder."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forks
import pytest
import run_cases

SHOWN = 40
OPTIONS = argparse.Namespace(python=None, timeout=300, keep=None, record=False)


def folder(framework: str) -> str:
    return str(Path(__file__).parent / framework / "cases")


def names(framework: str) -> list[str]:
    return run_cases.find_cases(folder(framework))


def execute(framework: str, _: None, folder: str, run: Mapping[str, Any], work: str, timeout: int) -> tuple[int, str]:
    """`run_cases.execute`, but in a fork of a process that has imported the framework."""
    dump, cwd, output = (Path(work, name) for name in ("dump", "cwd", "output.txt"))
    dump.mkdir()
    cwd.mkdir()
    arguments = ["--dump-path", str(dump)]
    config = Path(folder, run.get("config", "config.json"))
    if config.is_file():
        arguments += ["--config", str(config)]
    (ended,) = forks.server(*forks.with_tool(framework)).run(
        Path(folder, "train.py"), [*arguments, *run.get("args", [])],
        cwd=cwd, environment=run_cases.run_environment(), output=(output, output), timeout=timeout,
    )  # fmt: skip
    return ended.status, ended.out


def check(framework: str, name: str, monkeypatch: pytest.MonkeyPatch, of_release: str | None = None) -> None:
    """Run case `name` and compare its dump with the reference.

    Args:
        framework: The backend.
        name: The case.
        monkeypatch: Of the test.
        of_release: A regular expression for the differences that an installed release makes by itself. There must be
            some.
    """
    monkeypatch.setattr(run_cases, "execute", functools.partial(execute, framework))
    problems = run_cases.run_case(folder(framework), name, OPTIONS).problems
    if of_release is not None:
        others = [problem for problem in problems if not re.search(of_release, problem)]
        assert len(others) < len(problems), f"{name}: no difference is like {of_release}; remove the line."
        problems = others
    more = f"\n  ... and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    shown = "\n  ".join(problems[:SHOWN])
    assert not problems, f"{name}: {len(problems)} differences\n  {shown}{more}"
