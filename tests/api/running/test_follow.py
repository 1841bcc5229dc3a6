"""``msprobe run --follow-children`` and Pythons of which nothing can be collected: they run as without it.

No framework is needed: what stands in for one is a module called ``torch`` that holds nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import forks
import pytest

from probe.api.following import environment
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.dump.processes import RunProcess

STATE = """
import json, os, sys
print(json.dumps({
    "path": sys.path,
    "customized": "sitecustomize" in sys.modules,
    "ours": sorted(name for name in sys.modules if name.split(".")[0] in ("probe", "msprobe", "numpy")),
    "finders": [str(finder) for finder in sys.meta_path if "_msprobe" in type(finder).__module__],
    "arguments": sys.argv,
}))
"""
PARENT = """
import json, subprocess, sys
for command in json.loads(sys.argv[1]):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(json.dumps([done.returncode, done.stdout]))
"""


def children(
    folder: Path, *commands: list[str], follow: bool = True, path: str = "", package: str = forks.CHECKOUT
) -> tuple[list[Any], str]:
    """Status and output of each command that a program under ``msprobe run`` starts, and the lines of the log.

    Args:
        path: A folder that every Python imports from first.
        package: The folder that msprobe is imported from.
    """
    (folder / "parent.py").write_text(PARENT)
    options = ["--follow-children"] if follow else []
    command = [sys.executable, "-m", "msprobe", "run", *options, "-o", "out", "parent.py", json.dumps(commands)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([*([path] if path else []), package])}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    log = [line for line in (done.stdout + done.stderr).splitlines() if "] " in line and not line.startswith("[")]
    return printed, "\n".join(log)


def alone(folder: Path) -> str:
    """A folder with msprobe and nothing else: where it is installed, what it needs lies beside it."""
    package = folder / "package"
    package.mkdir()
    for name in ("probe", "msprobe"):
        (package / name).symlink_to(Path(forks.CHECKOUT, name), target_is_directory=True)
    return str(package)


def test_an_interpreter_that_trains_nothing_is_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "state.py").write_text(STATE)
    commands = [[sys.executable, *flags, "state.py", "--x"] for flags in ([], ["-I"], ["-E"], ["-P"])]
    if sys.version_info < (3, 11):
        commands.pop()
    # A shell hands on what it was given.
    commands += [["sh", "-c", f"{sys.executable} state.py"], ["sh", "-c", "echo plain; env | grep -c MSPROBE"]]
    followed, bare = children(tmp_path, *commands)[0], children(tmp_path, *commands, follow=False)[0]
    assert [status for status, _ in followed] == [0] * len(commands)
    assert followed.pop()[1] != bare.pop()[1] == "plain\n0\n", "without the option the environment stays"
    for (_, out), (_, expected), command in zip(followed, bare, commands):
        found, wanted = json.loads(out), json.loads(expected)
        assert len(found.pop("finders")) == (not {"-I", "-E"} & set(command)) and wanted.pop("finders") == []
        assert found == wanted


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = __file__\n")
    # A child that imports no framework imports no json either.
    program = "import builtins, sitecustomize as s, sys; print(builtins.customized, s.__file__, 'json' in sys.modules)"
    (found,), _ = children(tmp_path, [sys.executable, "-c", program], path=str(own))
    assert found == [0, f"{own}/sitecustomize.py {own}/sitecustomize.py False\n"]
    # An error in it is shown as without us.
    (own / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    command = [sys.executable, "-c", "print('runs')"]
    followed, bare = (children(tmp_path, command, path=str(own), follow=follow)[0] for follow in (True, False))
    assert followed == bare and "RuntimeError: mine" in followed[0][1] and "runs" in followed[0][1]


def test_what_cannot_be_watched_runs_undisturbed_and_is_named_at_the_end(tmp_path: Path) -> None:
    modules = [framework.module for framework in FRAMEWORKS.values()]
    text = (Path(environment.__file__).parent / "site" / "sitecustomize.py").read_text(encoding="utf-8")
    assert not any(f'"{module}"' in text for module in modules), "a child waits for those of the table"
    for module in modules:
        (tmp_path / f"{module}.py").write_text("value = 7\n")
    # A module of the program's that has our name is the program's.
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "probe.py").write_text("mine = 7\n")
    (inside / "torch.py").write_text("")
    (inside / "child.py").write_text("import os, torch, probe; print(probe.mine, 'SourceFileLoader', os.getpid())\n")
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=120)
    program = "import os, {0}; print({0}.value, {0}.__spec__.loader.__class__.__name__, os.getpid())"
    commands = [[sys.executable, "-c", program.format(module)] for module in modules]
    commands += [[str(bare / "bin" / "python"), "-c", program.format("torch")], [sys.executable, "inside/child.py"]]
    found, log = children(tmp_path, *commands, package=alone(tmp_path))
    said = [out.split() for status, out in found if status == 0]
    assert [words[:2] for words in said] == [["7", "SourceFileLoader"]] * len(commands), found
    notes = dict(re.findall(r"\[WARNING\] process (\d+) \(.*?\) was not watched: (.+)", log))
    assert set(notes) == {pid for _, _, pid in said}, log
    reasons = [notes[pid] for _, _, pid in said]
    assert "msprobe run cannot watch torch" in reasons[modules.index("torch")]
    assert reasons[-2] in [f"ModuleNotFoundError: No module named '{name}'" for name in ("numpy", "msgspec")]
    (nothing,) = [line for line in log.splitlines() if "collected nothing: " in line]
    assert "were not watched; see the lines above" in nothing


@pytest.mark.parametrize("before", [None, "", "/one", os.pathsep.join(("/one", "", "/two"))])
def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    variables = environment.FOLLOW, environment.FRAMEWORKS_VARIABLE
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    for _ in range(2):
        follower = environment.FollowedChildren("config.json", {"dump_path": "/out"}, "auto")
        follower.tell(RunProcess("run", (1,)))
        first, *others = os.environ["PYTHONPATH"].split(os.pathsep)
        assert first.endswith("site") and others == (before.split(os.pathsep) if before else [])
        told = environment.read(os.environ[environment.FOLLOW])
        assert (told.config_path, told.arguments, told.order) == ("config.json", {"dump_path": "/out"}, (1,))
        follower.remove()
        assert not set(variables) & set(os.environ) and os.environ.get("PYTHONPATH") == before


def test_damaged_notes_are_passed_over(tmp_path: Path) -> None:
    note = {"run": "a", "pid": 7, "program": "x.py", "reason": "why"}
    lines = [json.dumps(note), json.dumps({**note, "run": "b"}), '{"run": "a", "pi', "[]", "\x00"]
    (tmp_path / environment.UNWATCHED_FILE).write_text("\n".join(lines))
    assert list(environment.unwatched(str(tmp_path), "a")) == ["process 7 (x.py) was not watched: why"]
    assert list(environment.unwatched(str(tmp_path / "missing"), "a")) == []
