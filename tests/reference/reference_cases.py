"""Running recorded cases within pytest, for the ``test_<framework>_cases.py`` of this folder."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import check_dump
import forks

HERE = Path(__file__).parent
SHOWN = 40
Execute = Callable[[str, Path, Path, Mapping[str, Any]], "tuple[int, str]"]


def names(framework: str) -> list[str]:
    return sorted(path.parent.name for path in (HERE / framework / "cases").glob("*/case.json"))


@functools.cache
def sections(framework: str) -> dict[str, str]:
    """The parts and the programs of cases in ``programs.py``, each by its name: ``part:start``, ``case:scope``."""
    text = (HERE / framework / "programs.py").read_text(encoding="utf-8")
    _, *found = re.split(r"^#: (part|case) (.+)\n", text, flags=re.M)
    return {
        f"{kind}:{name}": body.strip("\n") + "\n"
        for kind, names, body in zip(found[::3], found[1::3], found[2::3])
        for name in names.split()
    }


def script(framework: str, name: str, description: str) -> str:
    """The script of a case, byte for byte what the recorded tool ran."""
    found = sections(framework)
    body = re.sub(r"^#: use (\w+)\n", lambda use: found[f"part:{use[1]}"], found[f"case:{name}"], flags=re.M)
    return f'"""{description}"""\n{body}'


def execute(framework: str, case: Path, work: Path, run: Mapping[str, Any]) -> tuple[int, str]:
    """Run a case's script in an empty folder, in a fork of a process that has imported the framework."""
    dump, cwd, output = (work / name for name in ("dump", "cwd", "output.txt"))
    dump.mkdir()
    cwd.mkdir()
    arguments = ["--dump-path", str(dump)]
    config = case / run.get("config", "config.json")
    if config.is_file():
        arguments += ["--config", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    (ended,) = forks.server(*forks.with_tool(framework)).run(
        work / "train.py", [*arguments, *run.get("args", [])],
        cwd=cwd, environment=environment, output=(output, output), timeout=300,
    )  # fmt: skip
    return ended.status, ended.out


def problems_of(framework: str, name: str, work: Path, execute: Execute) -> list[str]:
    """Run all runs of a case below the folder `work`, and list what differs from the reference."""
    case, found = HERE / framework / "cases" / name, []
    content = json.loads((case / "case.json").read_text(encoding="utf-8"))
    for run in content.get("runs", [{}]):
        label = run.get("name", "")
        folder = work / (label or "run")
        folder.mkdir()
        (folder / "train.py").write_text(script(framework, name, content["description"]), encoding="utf-8")
        status, output = execute(framework, case, folder, run)
        if status != run.get("exit_code", 0):
            found.append(f"{label}: status {status}; it ends with {output.strip()[-200:]!r}")
        else:
            options = {**content, "ignore": [*content.get("ignore", []), *run.get("ignore", [])]}
            expected = case / "expected" / label
            found += [f"{label}: {each}" for each in check_dump.compare(folder / "dump", expected, options)]
    return found


def check(framework: str, name: str, work: Path, of_release: str | None = None, execute: Execute = execute) -> None:
    """Run case `name` and compare its dump with the reference.

    Args:
        framework: The backend.
        name: The case.
        work: An empty folder, in which dumps and outputs stay.
        of_release: A regular expression for the differences that an installed release makes by itself. There must be
            some.
        execute: Runs the script.
    """
    problems = problems_of(framework, name, work, execute)
    if of_release is not None:
        others = [problem for problem in problems if not re.search(of_release, problem)]
        assert len(others) < len(problems), f"{name}: no difference is like {of_release}; remove the line."
        problems = others
    more = f"\n  ... and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    shown = "\n  ".join(problems[:SHOWN])
    assert not problems, f"{name}: {len(problems)} differences\n  {shown}{more}"
