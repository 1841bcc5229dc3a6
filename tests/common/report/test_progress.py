"""A bar on a terminal, and none anywhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from runs import two_runs

import probe
from probe.common.progress import with_progress

pytest.importorskip("pty", reason="terminals are POSIX's")
pytest.importorskip("rich", reason="needs rich: pip install rich")

# So that there is time to see something.
SLOW = """
import time
def column_name(): return "Slow"
def compare(n_value, b_value):
    time.sleep(0.1)
    return 0
"""
QUIET = {"PYTHONPATH": str(Path(probe.__file__).parents[1]), "MSPROBE_LOG_LEVEL": "3"}
COMMAND = "from probe.api import cli; sys.exit(cli.main(['compare', *sys.argv[1:]]))"


def on_terminal(folder: Path, *more: str, before: str = "import sys; ") -> str:
    """What a terminal gets to see of a comparison of the two runs in `folder`, control sequences included."""
    (folder / "slow.py").write_text(SLOW)
    paths = ("-tp", "target", "-gp", "golden", "-o", "out", "--algorithms", "slow.py")
    environment = {**os.environ, **QUIET, "TERM": "xterm", "COLUMNS": "100"}
    master, terminal = os.openpty()
    command = [sys.executable, "-c", before + COMMAND, *paths, *more]
    process = subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, cwd=folder, env=environment)
    os.close(terminal)
    seen = b""
    try:
        while part := os.read(master, 1 << 16):
            seen += part
    except OSError:
        pass  # That is how Linux says that nobody writes to it any more.
    finally:
        os.close(master)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, b"")
    return seen.decode()


def pairs(folder: Path) -> None:
    two_runs(folder, [f"step{n}/rank0" for n in range(4)], real_data=True)


def counted(seen: str, what: str) -> list[str]:
    """How far the bar said it was, in order."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)
    return list(dict.fromkeys(re.findall(rf"{what} [^\n\r]*? (\d+/\d+) ", plain)))


def test_several_pairs_are_counted(tmp_path: Path) -> None:
    pairs(tmp_path)
    seen = on_terminal(tmp_path, "--jobs", "2")
    found = counted(seen, "pairs")
    assert found[0] == "0/4" and len(found) >= 2 and found == sorted(found)
    # The last that is done to the bar is to erase it; what stays is the summary.
    assert seen.rindex("\x1b[2K") < seen.index("rows by tensor")
    assert seen.count("rows by tensor") == 4


def test_what_is_no_terminal_gets_none(tmp_path: Path) -> None:
    pairs(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-c", f"import sys; {COMMAND}", "-tp", "target", "-gp", "golden", "-o", "out"]
    environment = {**os.environ, **QUIET}
    more = ("--algorithms", "slow.py")
    done = subprocess.run([*command, *more], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr
    assert done.stderr == "" and "pairs " not in done.stdout


def test_what_is_watched_stays_what_it_is() -> None:
    told: list[tuple[str, int, int | None]] = []
    items = with_progress(range(10_000), lambda *state: told.append(state), "items", 10_000)
    assert list(items) == list(range(10_000))
    assert told[0] == ("items", 0, 10_000) and len(told) < 100
