"""What is said of a run that goes another way than its configuration says: one line, at the time it matters."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dumped
import pytest
from programs import Names, batch, block_network

from probe.common import log


@pytest.fixture(autouse=True)
def nothing_said_yet() -> Iterator[None]:
    log.reset()
    yield
    log.reset()


def train(debugger: Any, backend: Any, steps: int = 1, rank_id: int | None = None) -> Any:
    model = block_network(backend)
    for _ in range(steps):
        debugger.start(model, rank_id=rank_id)
        outcome = backend.run(model, batch(backend, requires_grad=True))
        debugger.stop()
        debugger.step()
    return outcome


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The text of each warning since the last time."""
    lines = capsys.readouterr().err.splitlines()
    return [line.partition("[WARNING] ")[2] for line in lines if "[WARNING] " in line]


# --- names that nothing has


def test_a_list_that_matches_nothing_is_said_once_after_the_first_step(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    names = Names(backend)
    debugger = runs.new(level="mix", list=["body.fx", names.act])
    debugger.start(block_network(backend))
    debugger.stop()
    debugger.step()
    assert warnings(capsys) == [], "no call was seen of which anything could be said"
    train(debugger, backend, steps=3)
    (line,) = warnings(capsys)
    assert line.startswith('step 1: nothing matches "body.fx" of "statistics.list"; ') and "names seen: " in line
    near = runs.new(dump_path=runs.path / "near", level="mix", list=[f"{names.fc}s.forward.0"])
    train(near, backend)
    (line,) = warnings(capsys)
    text = f'step 0: nothing matches "{names.fc}s.forward.0" of "statistics.list"; nearest names seen: '
    assert line.startswith(f'{text}"{names.fc}.forward.0"')


def test_of_a_scope_the_name_that_was_not_met_is_said(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    names = Names(backend)
    first, last = f"{names.fc}.forward.0", f"{names.head}.forward.0"
    absent, late = f"{names.fc}.forward.4", f"{names.head}.forward.7"
    for name, scope in {"first": [absent, last], "last": [first, late], "both": [first, last]}.items():
        train(runs.new(dump_path=runs.path / name, level="L0", scope=scope), backend)
    of_first, of_last = warnings(capsys)
    for line, missed, near in ((of_first, absent, first), (of_last, late, last)):
        assert line.startswith("step 0: ") and f'"{missed}"' in line and line.endswith(f'nearest names seen: "{near}".')
    assert "nothing was collected" in of_first and "did not end early" in of_last


def test_a_tensor_list_that_saves_nothing_is_said(runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names = Names(backend)
    train(runs.new(dump_path=runs.path / "a", level="L0", tensor_list=["body.fx"]), backend)
    train(runs.new(dump_path=runs.path / "b", level="L0", list=["head"], tensor_list=[names.fc]), backend)
    train(runs.new(dump_path=runs.path / "c", level="L0", tensor_list=[names.fc]), backend)
    absent, left_out = warnings(capsys)
    assert absent.startswith('step 0: nothing matches "body.fx" of "statistics.tensor_list"; ')
    assert left_out.startswith('step 0: no tensor was saved: records of "statistics.tensor_list" occurred, but other ')


# --- steps, ranks, folders


def test_a_step_that_was_never_reached_is_said_at_the_end_of_the_program(backend: Any, tmp_path: Path) -> None:
    source = (
        "from programs import block_network, batch\n"
        f"debugger = PrecisionDebugger(dump_path={str(tmp_path / 'dump')!r}, step=[1, 4, '6-8'])\n"
        "model = block_network(backend)\n"
        "for _ in range(3):\n"
        "    debugger.start(model)\n"
        "    model(batch(backend))\n"
        "    debugger.step()\n"
    )
    out = backend.run_script(source, cwd=tmp_path)
    line = '[WARNING] "step" names 4, 6-8, where start was never called: the program ran 3 steps (0-2).'
    assert out.count("where start was never called") == 1 and line in out
    assert f"dump.json is at {dumped.read(tmp_path / 'dump', 1).folder / 'dump.json'}." in out


@pytest.mark.parametrize(("wanted", "missed"), [([0, 1], []), ([1, 2], ["2"])])
def test_a_step_that_was_begun_is_no_step_that_was_missed(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str], wanted: list[int], missed: list[str]
) -> None:
    debugger = runs.new(step=wanted)
    train(debugger, backend)
    debugger.start()
    debugger.reset()
    given = [warning for warning in warnings(capsys) if "has no records" not in warning]
    assert len(given) == len(missed) and all(f'"step" names {each},' in line for each, line in zip(missed, given))


def test_a_program_that_ran_the_wanted_steps_and_no_more_ends_with_the_line_of_a_finished_collection(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for wanted, is_finished in (([0, 1], True), ([0, 2], False), ([], False)):
        debugger = runs.new(dump_path=runs.path / str(len(wanted)), step=wanted)
        train(debugger, backend, steps=2)
        debugger.reset()
        assert capsys.readouterr().err.splitlines()[-1].endswith("msprobe ends successfully.") == is_finished


def test_a_run_in_which_nothing_can_be_recorded_is_said_so_once(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for saves in (False, True):
        debugger = runs.new(level="debug")
        debugger.start(block_network(backend))
        if saves:
            debugger.save(1, "one")
        debugger.stop()
        debugger.step()
        debugger.reset()
        assert ["save was never called" in line for line in warnings(capsys)] == ([] if saves else [True])
    debugger = runs.new()
    for _ in range(2):
        debugger.start()
        debugger.step()
    debugger.reset()
    (line,) = warnings(capsys)
    assert "step 0 has no records" in line
    with runs.new():
        block_network(backend)
    (line,) = warnings(capsys)
    assert "nothing was collected in this block" in line and "start(model)" in line


@pytest.mark.parametrize(
    ("api", "begin"),
    [
        ("*relu*", 'step 0: nothing was recorded: no call of a function that matches "*relu*" of "api" ran inside '),
        ("rellu", 'step 0: nothing matches "rellu" of "api"; '),
    ],
)
def test_filters_that_leave_nothing_are_one_line(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str], api: str, begin: str
) -> None:
    debugger = runs.new(level="mix", module="body.fc", api=api)
    train(debugger, backend, steps=2)
    (line,) = warnings(capsys)
    assert line.startswith(begin)


def test_a_rank_filter_in_a_process_without_ranks_is_said_once(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    train(runs.new(rank=[0]), backend, steps=2)
    (line,) = warnings(capsys)
    assert line.startswith('this process has no rank, and "rank" is 0: nothing is collected here. ')
    assert "start(rank_id=0)" in line and not runs.path.exists()
    train(runs.new(rank=[0]), backend, rank_id=0)
    assert warnings(capsys) == [] and dumped.folders(runs.path) == ["step0/rank0"]
    train(runs.new(dump_path=runs.path / "other", rank=[0, "2-4"]), backend, rank_id=1)
    (line,) = warnings(capsys)
    assert 'rank 1 is not in "rank", which is 0, 2-4' in line


def test_a_dump_path_that_holds_an_earlier_run_is_said_with_where_this_one_goes(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    train(runs.new(), backend, steps=2)
    an_hour_ago = time.time() - 3600
    for folder in list(runs.path.glob("step*/proc*")):
        other = folder.rename(folder.with_name("proc1"))
        os.utime(other / "dump.json", (an_hour_ago, an_hour_ago))
    capsys.readouterr()
    train(runs.new(), backend, steps=2)
    minute = time.strftime("%Y-%m-%d %H:%M", time.localtime(an_hour_ago))
    (line,) = warnings(capsys)
    assert all(text in line for text in (str(runs.path), f"step1/proc1 of {minute}", f"step0/proc{os.getpid()}"))
    train(runs.new(), backend)
    said = warnings(capsys)
    assert len(said) == 2 and said[0].endswith("holds an earlier dump; its files of the same names are overwritten.")


def test_the_lines_name_the_real_file_also_after_the_process_got_a_rank(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = runs.new()
    for rank_id in (None, 0):
        debugger.start(rank_id=rank_id)
        backend.apis["abs"].call(batch(backend))
        debugger.stop()
    without, rank = runs.path / "step0" / f"proc{os.getpid()}", runs.path / "step0" / "rank0"
    out = capsys.readouterr().err
    assert re.findall(r"dump.json is at (.*)\.", out) == [str(without / "dump.json"), str(rank / "dump.json")]
    assert f"[INFO] This process has a rank now: its folder {without} is renamed to {rank}." in out
    assert re.findall(r"the data goes to (.*)\.", out) == [str(without), str(rank)] and rank.is_dir()


# --- tensors


def taken(folder: Path) -> int:
    """The bytes of the tensor files, those of several names once."""
    found = [path.stat() for path in (folder / "dump_tensor_data").iterdir()]
    return sum({status.st_ino: status.st_size for status in found}.values())


def test_what_tensors_take_is_said_and_max_gib_ends_them_and_not_the_training(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    train(runs.new(task="tensor", level="mix"), backend)
    out = capsys.readouterr().err
    (line,) = [line for line in out.splitlines() if "The tensor files of step0 take about" in line]
    assert 'at 100 GiB ("max_gib") no more tensors are saved' in line
    limit = taken(runs.read().folder) // 2
    part = runs.path / "part"
    outcome = train(runs.new(dump_path=part, task="tensor", level="mix", max_gib=limit / (1 << 30)), backend)
    (line,) = warnings(capsys)
    assert line.startswith('"max_gib" is reached: ')
    plain = backend.run(block_network(backend), batch(backend, requires_grad=True))
    assert outcome.output.tobytes() == plain.output.tobytes()
    dump, complete = dumped.read(part), runs.read()
    assert 0 < taken(dump.folder) <= limit
    entries = dumped.tensors(dump.data)
    assert sorted(entry["data_name"] for entry in entries if "data_name" in entry) == dump.files
    assert dump.names == complete.names and len(dump.files) < len(complete.files)
    assert [entry.get("Norm") for entry in entries] == [entry.get("Norm") for entry in dumped.tensors(complete.data)]


# --- the quiet switch


@pytest.mark.parametrize(
    ("level", "labels"),
    [("info", {"INFO", "WARNING"}), ("warning", {"WARNING"}), ("error", set()), ("silent", set())],
)
def test_log_level_leaves_out_lines(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str], level: str, labels: set[str]
) -> None:
    train(runs.new(level="mix", log_level=level, list=["no such name"], diff_nums=3), backend)
    assert set(re.findall(r"\[(INFO|WARNING|ERROR)\]", capsys.readouterr().err)) == labels
    assert dumped.folders(runs.path) == ["step0/procN"]
