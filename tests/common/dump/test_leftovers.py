"""What a run that was killed while it made its files had not finished goes away, and nothing else does."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import probe
from probe.api.cli import main
from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.common import files
from probe.common.config.config import load_config
from probe.common.dump.journal import Header, JournalWriter
from probe.common.dump.layout import JOURNAL_FILE, MADE_FILES
from probe.common.dump.recovery import recover
from probe.common.errors import FileCheckException

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be asked whether they live")

HALF = b"half a fi" * 200_000
IN_STOP = """
import os, signal, sys
from probe.common import files
from probe.common.dump import json_files
from probe.common.dump.journal import REPLACE, Header, JournalWriter
from probe.common.dump.layout import JOURNAL_FILE

folder, how = sys.argv[1:]
header = Header("statistics", "L1", "pytorch", None)
journal = JournalWriter(os.path.join(folder, JOURNAL_FILE), header)
for number in range(3):
    journal.record(f"Torch.relu.{number}.forward", number, -1, None, number, REPLACE, {"output": [number]})

def wait(*_):
    # More than waits in memory.
    yield b"half a fi" * 200_000
    print("writing", flush=True)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.readline()

json_files._data = wait
json_files.write(folder)
"""
"""A run that is stopped in the middle of making dump.json: it dies there, or goes on when it gets a line."""


def start(folder: Path, how: str) -> subprocess.Popen[str]:
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", IN_STOP, str(folder), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1])},
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    return process


def killed_in(folder: Path) -> Path:
    """The half-written file that a run left which was killed while it made dump.json."""
    process = start(folder, "die")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (left,) = folder.glob("*.tmp")
    assert left.name == f"dump.json.{process.pid}.tmp" and left.read_bytes() == HALF
    return left


@pytest.fixture
def living(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path / "dump" / "step0" / "rank1", "live")
    yield process
    killed = process.poll() is not None
    process.communicate("go on\n" if not killed else None)
    assert process.returncode == (-signal.SIGKILL if killed else 0)


@pytest.mark.parametrize("remove", [False, True])
def test_recover_makes_the_files_of_a_dead_run_and_leaves_a_living_one_alone(
    tmp_path: Path, living: subprocess.Popen[str], remove: bool
) -> None:
    left = killed_in(tmp_path / "dump" / "step0" / "rank0")
    alive = tmp_path / "dump" / "step0" / "rank1"
    before = {path.name: path.read_bytes() for path in alive.iterdir()}
    assert before[f"dump.json.{living.pid}.tmp"] == HALF and "dump.journal" in before
    first, second = recover(str(tmp_path / "dump"), remove)
    assert (first.records, first.problem) == (3, None)
    assert (second.folder, second.file_name, second.records) == (str(alive), "", 0)
    assert second.problem is not None and second.problem.startswith(f"{alive}: a process is still collecting here")
    assert {path.name: path.read_bytes() for path in alive.iterdir()} == before
    kept = [] if remove else ["dump.journal"]
    names = sorted(path.name for path in left.parent.iterdir())
    assert names == ["construct.json", *kept, "dump.json", "stack.json"], "the half-written file is gone"
    # Once it has ended its journal is like any other.
    living.kill()
    living.wait()
    assert [(one.folder, one.records, one.problem) for one in recover(str(alive))] == [(str(alive), 3, None)]


def test_the_next_run_in_a_folder_removes_what_a_dead_one_was_writing(tmp_path: Path) -> None:
    left = killed_in(tmp_path / "dump" / "step0" / "rank0")
    config = load_config(None, dump_path=str(tmp_path / "dump"), task=None, level="L1", step=None)
    folder = DumpFolder(config, 0, "rank0", "pytorch", False)
    assert not left.exists()
    assert (left.parent / "dump.journal.1").exists(), "what the dead run had recorded is kept"
    folder.close()


def test_a_run_that_finds_its_folder_in_use_removes_nothing(tmp_path: Path, living: subprocess.Popen[str]) -> None:
    config = load_config(None, dump_path=str(tmp_path / "dump"), task=None, level="L1", step=None)
    with pytest.raises(OSError, match="another process is collecting into this folder"):
        DumpFolder(config, 0, "rank1", "pytorch", False)
    assert (tmp_path / "dump" / "step0" / "rank1" / f"dump.json.{living.pid}.tmp").exists()


@pytest.fixture
def in_time() -> Iterator[None]:
    """Who waits for a pipe waits for ever."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("read", [False, True])
def test_pipes_in_the_place_of_files_are_not_waited_for(
    tmp_path: Path, in_time: None, read: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dump" / "step0" / "rank0"
    path.mkdir(parents=True)
    ends = []
    for name in ("dump.journal", "dump_error_info.log"):
        os.mkfifo(path / name)
        if read:
            ends.append(os.open(path / name, os.O_RDONLY | os.O_NONBLOCK))
    config = load_config(None, dump_path=str(tmp_path / "dump"), task=None, level="L1", step=None)
    folder = DumpFolder(config, 0, "rank0", "pytorch", False)
    folder.log_error("Torch.relu.0.forward", ValueError("odd"))
    folder.close()
    for end in ends:
        assert os.read(end, 1) == b"", "a reader of the pipe gets nothing"
        os.close(end)
    said = capsys.readouterr().err
    assert "Torch.relu.0.forward could not be recorded completely (ValueError: odd)" in said
    assert "dump_error_info.log cannot be written" in said
    assert stat.S_ISFIFO((path / "dump.journal.1").stat().st_mode), "it was moved aside like a journal"
    assert stat.S_ISFIFO((path / "dump_error_info.log").stat().st_mode)


def test_what_may_be_somebody_elses_stays(tmp_path: Path) -> None:
    left = killed_in(tmp_path)
    dead = left.name.split(".")[2]
    another_machine = tmp_path / f"stack.json.{dead}.tmp"
    names = [f"notes.{dead}.tmp", f"dump.json.{dead}.old", "dump.json.tmp", "dump.json.me.tmp", "dump.json.1.tmp",
             "dump.json.99999999999999999999.tmp"]  # fmt: skip
    for name in names:
        (tmp_path / name).write_text("mine")
    os.mkfifo(tmp_path / f"construct.json.{dead}.tmp")
    (tmp_path / f"debug.json.{dead}.tmp").symlink_to(tmp_path / names[0])
    with open(another_machine, "wb") as stream:
        assert files.lock(stream)
        assert files.remove_left(str(tmp_path), MADE_FILES) == [str(left)]
    kept = {*names, another_machine.name, f"construct.json.{dead}.tmp", f"debug.json.{dead}.tmp"}
    assert kept <= {path.name for path in tmp_path.iterdir()}
    assert files.remove_left(str(tmp_path), MADE_FILES) == [str(another_machine)], "its lock is gone"


def test_a_link_that_was_laid_while_a_run_is_dead_is_not_followed(tmp_path: Path) -> None:
    left = killed_in(tmp_path / "dump" / "step0" / "rank0")
    target = tmp_path / "precious"
    target.write_text("mine")
    left.unlink()
    left.symlink_to(target)
    list(recover(str(tmp_path / "dump")))
    assert target.read_text() == "mine"


def test_recover_does_not_write_through_a_folder_that_is_a_link(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    dead.mkdir()
    JournalWriter(str(dead / JOURNAL_FILE), Header("statistics", "L1", "pytorch", None)).close()
    (tmp_path / "link").symlink_to(dead)
    for given in ("link", "link/", "link/.", "link/./"):
        with pytest.raises(FileCheckException, match=r"link[/.]* is a symbolic link; give the folder"):
            list(recover(f"{tmp_path}/{given}"))
    assert os.listdir(dead) == [JOURNAL_FILE]


def test_files_without_a_journal_that_cannot_be_read_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dump.json").write_text('{"data": {')
    assert main(["recover", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count(str(tmp_path)) == 1 and "There is no journal to make it from." in said
