"""The csv file of `random_save`: its name, its rows and what happens when something goes wrong.

No framework is needed for this. Each program has a process of its own, because the functions of `random` and
`numpy.random` are replaced for all of it.
"""

from __future__ import annotations

import csv
import os
import re
import signal
from pathlib import Path

import forks
import pytest
from scripts import script

PRELUDE = """
import os, random, sys
import numpy as np
from probe.api.randomness import random_save
from probe.backends.shared import randomness as recorder

class Sources:
    number = None
    def random_calls(self):
        return []
    def rank(self):
        return self.number

sources = Sources()
folder = sys.argv[1]
"""
START = "random_save(sources.random_calls(), sources.rank, folder)\n"
FRAME = re.compile(r"File (?P<path>[^\n]*), line (?P<line>\d+), in (?P<function>[^\n]*), \n (?P<source>[^\n]*)\n")

needs_posix = pytest.mark.skipif(os.name != "posix", reason="permissions, links and signals of POSIX")


def run(tmp_path: Path, code: str, folder: str = "out", status: int = 0) -> tuple[str, Path]:
    """Run `code` after PRELUDE; return what it wrote, and its folder."""
    done = forks.run_python("toy", tmp_path / "train.py", folder, code=PRELUDE + code)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr, tmp_path / folder


def recorded(tmp_path: Path, code: str, folder: str = "out") -> tuple[str, Path]:
    """Run `code`, all of whose calls are recorded."""
    return run(tmp_path, START + code, folder)


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.reader(stream))


def names_of(path: Path) -> list[str]:
    return [row[0] for row in rows_of(path)[1:]]


def randoms(count: int) -> list[str]:
    return [f"python_random.random.{number}" for number in range(count)]


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_every_call_is_a_row_with_its_number_and_stack(tmp_path: Path) -> None:
    code = """
def draw():
    return random.random()
draw()
np.random.rand(2)
draw()
random.choice("ab" "c")
"""
    # In an interpreter of its own the program is the outermost frame.
    done = script(tmp_path, PRELUDE + START + code, "out")
    assert done.returncode == 0, done.stderr
    path = only_file(tmp_path / "out")
    assert re.fullmatch(r"random_proc\d+_\d{14}\.csv", path.name)
    assert path.read_bytes().startswith(b"\xef\xbb\xbfapi_name,stack\r\n")
    rows = rows_of(path)[1:]
    python = "python_random.random.0", "python_random.random.1"
    assert [row[0] for row in rows] == [python[0], "numpy_random.rand.0", python[1], "python_random.choice.0"]
    frames = [[match.group("function", "source") for match in FRAME.finditer(row[1])] for row in rows]
    assert frames == [
        [("draw", "return random.random()"), ("<module>", "draw()")],
        [("<module>", "np.random.rand(2)")],
        [("draw", "return random.random()"), ("<module>", "draw()")],
        [("<module>", 'random.choice("ab" "c")')],
    ]
    assert all("".join(match.group() for match in FRAME.finditer(row[1])) == row[1] for row in rows)


def test_recording_changes_neither_what_is_drawn_nor_the_names(tmp_path: Path) -> None:
    _, folder = run(
        tmp_path,
        f"""
def draw():
    random.seed(3); np.random.seed(3)
    return random.random(), random.sample(range(99), 3), np.random.rand(3).tolist()
before, functions = draw(), (random.random, np.random.rand)
{START}
for was, now in zip(functions, (random.random, np.random.rand)):
    assert now is not was and now.__name__ == was.__name__
assert draw() == before
""",
    )
    assert names_of(only_file(folder))


def test_without_a_path_the_folder_is_output(tmp_path: Path) -> None:
    run(tmp_path, "random_save(sources.random_calls(), sources.rank); random.random()")
    assert names_of(only_file(tmp_path / "output")) == randoms(1)


def test_the_file_takes_the_rank_as_soon_as_there_is_one_and_replaces_no_other(tmp_path: Path) -> None:
    _, folder = run(
        tmp_path,
        f"""
import time
os.mkdir(folder)
for second in range(5):
    stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(time.time() + second))
    for owner in (f"proc{{os.getpid()}}", "rank0"):
        with open(f"{{folder}}/random_{{owner}}_{{stamp}}.csv", "w") as stream:
            stream.write("theirs")
{START}
random.random()
sources.number = 0
random.random()
random.random()
""",
    )
    ours = [path for path in folder.iterdir() if path.read_text(encoding="utf-8-sig") != "theirs"]
    assert len(ours) == 1 and ours[0].name.startswith("random_rank0_") and names_of(ours[0]) == randoms(3)
    assert len(list(folder.iterdir())) == 11


def test_a_second_call_goes_on_with_the_first_file_and_says_so(tmp_path: Path) -> None:
    more = 'random.random()\nrandom_save(sources.random_calls(), sources.rank, "elsewhere")\nrandom.random()\n'
    said, folder = recorded(tmp_path, more)
    assert names_of(only_file(folder)) == randoms(2) and not (tmp_path / "elsewhere").exists()
    assert re.search(r'\[WARNING\].*output_path "elsewhere" is not used', said)


@needs_posix
def test_nothing_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    code = f"{START}for _ in range(100):\n    random.random()\nos.kill(os.getpid(), 9)\n"
    _, folder = run(tmp_path, code, status=-signal.SIGKILL)
    assert names_of(only_file(folder)) == randoms(100)


@needs_posix
def test_a_forked_child_writes_a_file_of_its_own_and_threads_share_one_count(tmp_path: Path) -> None:
    _, folder = run(
        tmp_path,
        f"""
import threading
sources.number = 0
{START}
child = os.fork()
if child == 0:
    random.random()
    random.uniform(0, 1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
threads = [threading.Thread(target=lambda: [random.random() for _ in range(200)]) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
    )
    child, parent = sorted(folder.iterdir())
    assert child.name.startswith("random_proc") and parent.name.startswith("random_rank0_")
    assert names_of(child) == ["python_random.random.0", "python_random.uniform.0"]
    assert names_of(parent) == randoms(800)


def test_a_failing_record_costs_rows_and_not_the_run(tmp_path: Path) -> None:
    said, folder = recorded(
        tmp_path,
        """
random.random()
def full(*_):
    raise OSError(28, "No space left on device")
recorder.os.write, write = full, recorder.os.write
random.seed(1); drawn = [random.random(), random.random()]
recorder.os.write = write
random.seed(1)
assert drawn == [random.random(), random.random()]
""",
    )
    assert names_of(only_file(folder)) == randoms(1)
    assert said.count("[WARNING]") == 1 and "No space left on device" in said


@needs_posix
def test_folder_and_file_are_closed_to_others(tmp_path: Path) -> None:
    _, folder = run(tmp_path, f"os.umask(0); {START}", folder="new/out")
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o750, 0o750]
    assert only_file(folder).stat().st_mode & 0o777 == 0o640


def test_a_wrong_folder_is_refused_and_nothing_is_watched(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    said, _ = run(
        tmp_path,
        """
from probe.common.errors import MsprobeException
before = random.random
for wrong in ("link", "link/", "file", 3):
    try:
        random_save(sources.random_calls(), sources.rank, wrong)
    except MsprobeException as error:
        print(error)
    assert random.random is before
""",
    )
    expected = [("link", "symbolic link")] * 2 + [("file", "not a folder"), ("3", "str")]
    for line, (value, why) in zip(said.splitlines(), expected):
        assert line.startswith("output_path is ") and value in line and why in line
    assert not list((tmp_path / "real").iterdir()) and (tmp_path / "file").read_text(encoding="utf-8") == "mine"
