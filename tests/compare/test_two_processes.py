"""A large pair of dumps in two processes: the same as in one, whatever becomes of the second."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_dumps
import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two processors"
)

CALLS = 4400
Data = dict[str, Any]

# Says at the end how many processes it forked, and whether it had an answer of one.
COMMAND = """
import os, sys
from probe.api.cli import main
from probe.common.parallel import fork
forks, answers = [], []
os.register_at_fork(after_in_parent=lambda: forks.append(1))
listen = fork.Fork.answer
fork.Fork.answer = lambda one: answers.append(listen(one)) or answers[-1]
{before}
status = main()
print(f"forks: {{len(forks)}}, answered: {{any(answers)}}", file=sys.stderr)
sys.exit(status)
"""
ALONE, TOGETHER, UNANSWERED = "forks: 0, answered: False", "forks: 1, answered: True", "forks: 1, answered: False"


def tensor(numbers: random.Random, **other: Any) -> Data:
    largest, smallest, mean = (numbers.gauss(0, 1) for _ in range(3))
    return made_dumps.tensor(largest, smallest, mean, abs(numbers.gauss(3, 1)), (8, 16), requires_grad=True, **other)


def run_of(seed: int) -> Data:
    """Calls forward and backward, inside and outside of modules; every number is another with another seed."""
    numbers = random.Random(seed)
    data: Data = {}
    for number in range(CALLS // 4):
        inputs = [tensor(numbers), tensor(numbers), made_dumps.plain(number)]
        call = made_dumps.call(inputs, [tensor(numbers), tensor(numbers)])
        data[f"Functional.linear.{number}.forward"] = call
        data[f"Module.layers.{number}.fc.Linear.forward.0"] = {**call, "parameters": {"weight": tensor(numbers)}}
        back = {"input": [tensor(numbers), tensor(numbers)], "output": [tensor(numbers), tensor(numbers)]}
        data[f"Module.layers.{number}.fc.Linear.backward.0"] = back
        data[f"Functional.linear.{number}.backward"] = back
    return data


def near(data: Data, apart: float) -> Data:
    """The same run, with every float a little off."""
    numbers = random.Random(7)

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [moved(entry) for entry in value]
        return value * (1 + apart * numbers.gauss(0, 1)) if isinstance(value, float) else value

    found: Data = moved(data)
    return found


def without(data: Data, *names: str) -> Data:
    return {name: call for name, call in data.items() if name not in names}


def first(data: Data, count: int) -> Data:
    return dict(list(data.items())[:count])


def changed(data: Data, name: str, change: Callable[[Data], object]) -> Data:
    found = {**data, name: copy.deepcopy(data[name])}
    change(found[name])
    return found


RUN = run_of(0)
NEAR = near(RUN, 1e-6)
LATE = f"Functional.linear.{CALLS // 4 - 20}.forward"
MIDDLE = f"Functional.linear.{CALLS // 8}.forward"

PAIRS = {
    "every number differs a little": (NEAR, RUN),
    "nothing is the same": (run_of(1), RUN),
    "nothing differs": (RUN, RUN),
    "one output is far off, near the end": (
        changed(NEAR, LATE, lambda call: call["output"][1].update(Max=3e3, Norm=4e3)), RUN,
    ),
    "not a number, and numbers that are none": (
        changed(NEAR, LATE, lambda call: call["output"][0].update(Max=float("nan"), Min=float("-inf"), Mean=None)),
        changed(RUN, LATE, lambda call: call["output"][1].update(Max=1, Min=True, Norm="=1+1")),
    ),
    "a type and a shape differ": (
        changed(NEAR, LATE, lambda call: call["input_args"][0].update(dtype="torch.float16")),
        changed(RUN, MIDDLE, lambda call: call["output"][0].update(shape=[8, 17])),
    ),
    "an argument and an output are on one side only": (
        changed(NEAR, LATE, lambda call: call["input_args"].append({"type": "str", "value": "a, \"b\"\n;=c"})),
        changed(RUN, MIDDLE, lambda call: call["output"].append(tensor(random.Random(3)))),
    ),
    "the target lacks a call": (without(NEAR, MIDDLE), RUN),
    "the golden run lacks two calls": (NEAR, without(RUN, MIDDLE, "Module.layers.3.fc.Linear.backward.0")),
    "the target ends early": (first(NEAR, CALLS - 300), RUN),
    "backward calls are recomputed, which changes their numbers": (
        NEAR, {name.replace(".backward", "0.backward") if "linear" in name else name: RUN[name] for name in RUN},
    ),
    "an integer that no float holds": (
        changed(NEAR, LATE, lambda call: call["output"][0].update(Max=10**400)), RUN,
    ),
    "most types differ": (
        json.loads(json.dumps(NEAR).replace("torch.float32", "torch.bfloat16")), RUN,
    ),
    "there are checksums near the end": tuple(
        changed(data, LATE, lambda call: call["output"][1].update(md5="00c0ffee")) for data in (NEAR, RUN)
    ),
    "a call has no items": (changed(NEAR, LATE, dict.clear), changed(RUN, LATE, dict.clear)),
    "a call has no items on one side": (changed(NEAR, LATE, dict.clear), RUN),
}  # fmt: skip
# Where a call was made by one side alone, or there are checksums, one process does everything.
INSTEAD = {
    "the target lacks a call": ALONE,
    "the golden run lacks two calls": ALONE,
    "the target ends early": ALONE,
    "there are checksums near the end": UNANSWERED,
}


def write(folder: Path, data: Data) -> Path:
    tree: dict[str, str | None] = {}
    for name in data:
        number = name.split(".")[2]
        around = f"Module.layers.{number}.fc.Linear.{name.rpartition('.')[2]}.0"
        tree[name] = around if name.startswith("Functional") and around in data else None
    frames = (f"File model.py, line {place % 50}, in forward" for place in range(len(data)))
    stacks = {str(place): [[name], [frame]] for place, (name, frame) in enumerate(zip(data, frames))}
    return made_dumps.write(folder, data, tree, stacks)


def both(folder: Path, target: Data = NEAR, golden: Data = RUN) -> list[Path]:
    return [write(folder / "target", target), write(folder / "golden", golden)]


def start(sides: list[Path], out: Path, *more: str, before: str = "", **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMAND.format(before=before), "compare"]
    paths = ["-tp", str(sides[0]), "-gp", str(sides[1]), "-o", str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *paths, *more], **pipes, **how)


def compare(sides: list[Path], out: Path, *more: str, before: str = "") -> tuple[int, str, str]:
    process = start(sides, out, *more, before=before)
    said, errors = process.communicate(timeout=120)
    return process.returncode, said, errors


def written(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(out.iterdir())]


def without_paths(said: str) -> Any:
    (found,) = json.loads(said)
    found.pop("tables")
    return found


def fork_of(process: subprocess.Popen[str]) -> int:
    """The process that `process` forks, once there is one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        found = children.read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.002)
    raise AssertionError("it forked nothing")


@pytest.mark.parametrize("what", PAIRS)
def test_two_processes_say_and_write_what_one_does(tmp_path: Path, what: str) -> None:
    sides = both(tmp_path, *PAIRS[what])
    options = ("--json", "--fail-on", "divergence")
    alone = compare(sides, tmp_path / "alone", *options, "--jobs", "1")
    halves = compare(sides, tmp_path / "halves", *options, "--jobs", "2")
    assert (alone[2], halves[2]) == (f"{ALONE}\n", f"{INSTEAD.get(what, TOGETHER)}\n")
    assert alone[0] == halves[0]
    assert without_paths(alone[1]) == without_paths(halves[1])
    assert written(tmp_path / "alone") == written(tmp_path / "halves")
    (table,) = (tmp_path / "halves").iterdir()
    assert stat.S_IMODE(table.stat().st_mode) & 0o137 == 0
    assert table.read_bytes().count(b"\n") > CALLS


def test_functions_in_other_modules_are_compared_in_one_process(tmp_path: Path) -> None:
    sides = both(tmp_path)
    path = sides[0] / "construct.json"
    tree = json.loads(path.read_text())
    names = [f"Functional.linear.{number}.forward" for number in (3, 4)]
    tree.update(zip(names, [tree[name] for name in reversed(names)]))
    path.write_text(json.dumps(tree))
    alone = compare(sides, tmp_path / "alone", "--json", "--jobs", "1")
    status, said, errors = compare(sides, tmp_path / "out", "--json", "--jobs", "2")
    assert (status, errors) == (0, f"{ALONE}\n")
    assert without_paths(said) == without_paths(alone[1])


def test_a_process_that_is_killed_costs_nothing_but_time(tmp_path: Path) -> None:
    sides = both(tmp_path)
    alone = compare(sides, tmp_path / "alone", "--json", "--jobs", "1")
    process = start(sides, tmp_path / "out", "--json")
    os.kill(fork_of(process), signal.SIGKILL)
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, f"{UNANSWERED}\n")
    assert without_paths(said) == without_paths(alone[1])
    assert written(tmp_path / "out") == written(tmp_path / "alone")


def test_one_that_never_begins_costs_nothing_either(tmp_path: Path) -> None:
    sides = both(tmp_path)
    alone = compare(sides, tmp_path / "alone", "--jobs", "1")
    dies = "os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), 9))"
    status, _, errors = compare(sides, tmp_path / "out", before=dies)
    assert (status, errors) == (0, f"{UNANSWERED}\n") and alone[0] == 0
    assert written(tmp_path / "out") == written(tmp_path / "alone")


def test_ctrl_c_ends_both_and_leaves_nothing(tmp_path: Path) -> None:
    process = start(both(tmp_path), tmp_path / "out", start_new_session=True)
    fork = fork_of(process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted" in errors
    assert list((tmp_path / "out").iterdir()) == []
    assert not Path(f"/proc/{fork}").exists()


FAULTS = {
    "there are no more processes": "def no(): raise BlockingIOError(11, 'no more')\nos.fork = no",
    "there are no more pipes": "def no(): raise OSError(24, 'too many')\nos.pipe = no",
    "the fork says something else": "import msgspec; fork.Fork.answer = lambda fork: b'abc'",
    "nobody is told of children": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fork_that_fails_costs_nothing_but_time(tmp_path: Path, fault: str) -> None:
    sides = both(tmp_path)
    alone = compare(sides, tmp_path / "alone", "--json", "--jobs", "1")
    status, said, errors = compare(sides, tmp_path / "out", "--json", before=FAULTS[fault])
    assert (status, errors.count("\n")) == (0, 1), errors
    assert without_paths(said) == without_paths(alone[1])
    assert written(tmp_path / "out") == written(tmp_path / "alone")


def test_one_whose_parent_is_killed_before_it_reads_the_answer_ends_too(tmp_path: Path) -> None:
    never = "import time; fork.Fork.answer = lambda fork: time.sleep(100)"
    process = start(both(tmp_path), tmp_path / "out", before=never)
    fork = fork_of(process)
    # More than a pipe holds waits to be read.
    writes = Path(f"/proc/{fork}/wchan")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and "pipe" not in writes.read_text():
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=120)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _runs(fork):
        time.sleep(0.01)
    assert not _runs(fork)


def test_one_whose_parent_was_killed_ends_too(tmp_path: Path) -> None:
    process = start(both(tmp_path), tmp_path / "out")
    fork = fork_of(process)
    process.kill()
    process.communicate(timeout=120)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _runs(fork):
        time.sleep(0.01)
    assert not _runs(fork)
    assert not list((tmp_path / "out").glob("*.csv"))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    # Whoever takes over orphans may not collect them.
    return state != "Z"


@pytest.mark.parametrize("name", [MIDDLE, LATE])
def test_a_damaged_record_is_the_one_error_it_is_otherwise(tmp_path: Path, name: str) -> None:
    sides = both(tmp_path, changed(NEAR, name, lambda call: call["output"].append(5)))
    found = [compare(sides, tmp_path / jobs, "--jobs", jobs) for jobs in ("1", "2")]
    errors = [errors.partition("forks: ")[0] for _, _, errors in found]
    assert [status for status, _, _ in found] == [2, 2]
    assert errors[0] == errors[1] and f"{name}.output.2: a number (5) stands where" in errors[0]
    assert [list((tmp_path / jobs).iterdir()) for jobs in ("1", "2")] == [[], []]


@pytest.mark.parametrize("more", [("--jobs", "1"), ("-fm",), ("--rules", "msprobe"), ("-cm",)])
def test_what_is_not_for_halves_stays_in_one_process(tmp_path: Path, more: tuple[str, ...]) -> None:
    status, _, errors = compare(both(tmp_path), tmp_path / "out", *more)
    assert (status, errors.splitlines()[-1]) == (0, ALONE)


def test_nothing_is_forked_beside_another_thread(tmp_path: Path) -> None:
    waits = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    status, _, errors = compare(both(tmp_path), tmp_path / "out", before=waits)
    assert (status, errors) == (0, f"{ALONE}\n")
