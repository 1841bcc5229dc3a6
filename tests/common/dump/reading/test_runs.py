"""Which processes of a step are one run, and which process of which run a folder says it is of."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest

from probe.common.dump import processes, schema
from probe.common.dump.layout import PROCESS_FILE
from probe.common.dump.processes import RunProcess
from probe.common.dump.reading.runs import folders_of_run, processes_of


def folder(step: Path, name: str, run: str = "", order: tuple[int, ...] = (), written: int = 0) -> None:
    path = step / name
    path.mkdir(parents=True)
    (path / "dump.json").write_text('{"data": {}}')
    if run:
        (path / PROCESS_FILE).write_text(json.dumps({"format": 1, "run": run, "order": order, "pid": 1, "program": ""}))
    for file in path.iterdir():
        os.utime(file, (written, written))


CASES = {
    "siblings in the order of their start": (
        [("proc3", "a", (2,), 5), ("proc4", "a", (1, 7), 6), ("proc5", "a", (), 4), ("proc6", "a", (1,), 4)],
        ["proc5", "proc6", "proc4", "proc3"], [], [],
    ),
    "an earlier run": (
        [("proc3", "a", (1,), 5), ("proc4", "b", (2,), 9), ("proc5", "b", (1,), 1), ("proc6", "a", (2,), 8)],
        ["proc5", "proc4"], ["proc3", "proc6"], [],
    ),
    "an earlier run that says nothing": (
        [("proc3", "", (), 1), ("proc4", "b", (), 9)], ["proc4"], ["proc3"], [],
    ),
    "a later one that says nothing": (
        [("proc3", "", (), 9), ("proc4", "b", (), 1), ("proc5", "", (), 2)], ["proc3"], ["proc4"], ["proc5"],
    ),
    "nobody says anything": ([("proc9", "", (), 9), ("proc10", "", (), 1)], ["proc9"], [], ["proc10"]),
    "ranks and a process of the same run": (
        [("rank10", "a", (3,), 1), ("rank2", "a", (4,), 1), ("proc7", "a", (1,), 1)],
        ["rank2", "rank10", "proc7"], [], [],
    ),
    "ranks that a launcher began, each as a run": (
        [("rank0", "b", (), 9), ("rank1", "c", (), 5), ("proc7", "c", (3,), 9), ("proc8", "d", (), 1)],
        ["rank0", "rank1", "proc7"], ["proc8"], [],
    ),
    "ranks of an earlier run": (
        [("rank0", "a", (1,), 5), ("rank1", "a", (2,), 5), ("proc7", "b", (), 9), ("proc8", "", (), 10)],
        ["proc7"], ["rank0", "rank1", "proc8"], [],
    ),
    "ranks that say nothing": (
        [("rank0", "", (), 1), ("proc7", "a", (1,), 9), ("proc8", "", (), 9)], ["rank0"], ["proc7"], ["proc8"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_the_run_which_wrote_last(tmp_path: Path, case: str) -> None:
    made, chosen, earlier, unknown = CASES[case]
    for name, run, order, written in made:
        folder(tmp_path, name, run, order, written)
    found = processes_of(str(tmp_path))
    assert [each.name for each in found.folders] == chosen
    assert sorted(each.name for each in found.earlier) == sorted(earlier)
    assert [each.name for each in found.unknown] == unknown
    assert bool(found.left_out) == bool(earlier or unknown)
    assert all(name in " ".join(found.left_out) for name in (*earlier, *(unknown if "proc8" in unknown else ())))


def test_a_folder_without_records_is_that_of_no_process(tmp_path: Path) -> None:
    (tmp_path / "proc7").mkdir()
    assert processes_of(str(tmp_path)).folders == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"run": 7}', b'{"run": "a", "order": ["x"]}', b"\xff\x00", b"[" * 100_000]
)
def test_a_damaged_file_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PROCESS_FILE).write_bytes(content)
    assert processes.read(str(tmp_path)) is None


def test_a_pipe_of_that_name_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PROCESS_FILE)
    assert processes.read(str(tmp_path)) is None


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "train.py \udcff " + "x" * 1000
    monkeypatch.setattr(processes, "_present", None)
    processes.write(str(tmp_path), program)
    assert list(tmp_path.iterdir()) == []
    began = processes.begin_run()
    processes.write(str(tmp_path), program)
    found = processes.read(str(tmp_path))
    assert found is not None and (found.run, found.order, found.pid) == (began.run, (), os.getpid())
    content = json.loads((tmp_path / PROCESS_FILE).read_text())
    jsonschema.validate(content, schema.load("process"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**content, "order": ["x"]}, schema.load("process"))
    assert found.program.startswith("train.py \\udcff xxx") and len(found.program) < 400
    first, second = processes.next_child(), processes.next_child()
    assert first is not None and second is not None and first.order < second.order
    assert first.is_below(began) and not began.is_below(first) and not began.is_below(began)
    assert not first.is_below(RunProcess("other"))
    # A script without a run overwrites the dump.
    monkeypatch.setattr(processes, "_present", None)
    processes.write(str(tmp_path), program)
    assert list(tmp_path.iterdir()) == []


def test_the_folders_below_a_process_are_found_in_all_steps(tmp_path: Path) -> None:
    several = (("proc1", "a", ()), ("proc2", "a", (5,)), ("rank0", "a", (5, 1)), ("proc3", "b", (5,)))
    for step in (0, 10):
        for name, run, order in several:
            folder(tmp_path / f"step{step}", name, run, order)
    found = [(step, each.name) for step, each in folders_of_run(str(tmp_path), RunProcess("a"))]
    assert sorted(found) == [(0, "proc2"), (0, "rank0"), (10, "proc2"), (10, "rank0")]
    assert [each.name for _, each in folders_of_run(str(tmp_path), RunProcess("a", (5,)))] == ["rank0", "rank0"]
    assert list(folders_of_run(str(tmp_path / "missing"), RunProcess("a"))) == []


@pytest.mark.parametrize(("count", "said"), [(6, "rank5."), (7, "rank5 and 1 more.")])
def test_at_most_six_of_the_folders_that_are_left_out_are_named(tmp_path: Path, count: int, said: str) -> None:
    folder(tmp_path / "step0", "rank9")
    for rank in range(count):
        (tmp_path / "step0" / f"rank{rank}").mkdir()
    (sentence,) = processes_of(str(tmp_path / "step0")).left_out
    assert sentence.endswith(said)
