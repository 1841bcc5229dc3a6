"""Runs, steps and processes: what probe.read finds, and which folders belong to one run."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import jsonschema
import made_dumps
import pytest
from made_dumps import call, plain, write, write_journal

import probe
from probe.common.dump import processes, schema
from probe.common.dump.layout import PROCESS_FILE
from probe.common.dump.processes import RunProcess
from probe.common.dump.reading.call_tree import CallTree
from probe.common.dump.reading.runs import processes_of
from probe.common.errors import MissingDependency, MsprobeException

# --- `probe.read` of runs and steps, and what can be asked of their dumps

RELU = "Functional.relu.0.forward"
FC = "Module.fc.Linear.forward.0"


def tensor(largest: float) -> dict[str, Any]:
    return made_dumps.tensor(largest, 0.0, 1.0, 2.0, (2, 3), requires_grad=True)


def dump(folder: Path, largest: float = 3.0) -> Path:
    records = {RELU: call([tensor(1.0), plain(7)], [tensor(largest)]), FC: call([tensor(1.0)], [tensor(2.0)])}
    return write(folder, records, {FC: None, RELU: FC})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two steps of two ranks, the last of which died."""
    for step, rank, largest in ((0, 0, 3.0), (0, 1, 4.0), (10, 0, math.nan)):
        dump(tmp_path / f"step{step}" / f"rank{rank}", largest)
    write_journal(tmp_path / "step10" / "rank1", {RELU: {"output": [tensor(5.0)]}})
    (tmp_path / "step10" / "notes").mkdir()
    return tmp_path


def test_a_run_has_steps_and_ranks_in_order(run: Path) -> None:
    found = probe.read(run)
    assert isinstance(found, probe.Run)
    assert (found.steps, found.ranks, len(found)) == ([0, 10], [0, 1], 4)
    assert [(each.step, each.rank, each.died) for each in found] == [
        (0, 0, False), (0, 1, False), (10, 0, False), (10, 1, True),
    ]  # fmt: skip
    assert found[0, 1][RELU].items()[-1].max == 4.0
    assert found[10, 1][RELU].items()[-1].max == 5.0


@pytest.mark.parametrize("give", ["step10/rank0", "step10/rank0/dump.json", "step10/rank1", "only", "only/step3"])
def test_what_holds_one_dump_is_read_as_that(run: Path, give: str) -> None:
    dump(run / "only" / "step3" / "proc17")
    found = probe.read(run / give)
    assert isinstance(found, probe.Dump) and RELU in found
    assert (found.step, found.rank) == ((3, None) if "only" in give else (10, int("rank1" in give)))
    assert len(probe.Run(run / "only")) == 1


def test_a_dump_that_is_not_there_is_named_with_those_that_are(run: Path) -> None:
    found = probe.Run(run)
    with pytest.raises(LookupError, match=r"^step 0 has ranks 0, 1; give one of them: run\[0, 0\]$"):
        found[0]
    with pytest.raises(LookupError, match=r"^\(5, 0\) is not in the run; steps: 0, 10; ranks: 0, 1$"):
        found[5, 0]


def test_of_several_processes_without_rank_the_last_that_wrote_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for process, largest, written in ((9, 1.0, 200), (10, 2.0, 100)):
        folder = dump(tmp_path / "step0" / f"proc{process}", largest)
        for file in folder.iterdir():
            os.utime(file, (written, written))
    assert probe.read(tmp_path)[RELU].items()[-1].max == 1.0
    assert "step0 holds 2 proc folders; proc9, which was written last, is read." in capsys.readouterr().err


def test_where_chooses_items_of_all_dumps(run: Path) -> None:
    found = probe.read(run).where('(Max > 2 or nan) and state == "output"')
    assert [(row.step, row.rank, row.path, row.module) for row in found.rows] == [
        (0, 0, "output.0", FC), (0, 1, "output.0", FC), (10, 0, "output.0", FC), (10, 1, "output.0", None),
    ]  # fmt: skip
    assert [item.name for item in found] == [f"{RELU}.output.0"] * 4 and found[1].max == 4.0
    assert len(found[1:3]) == 2 and found[1:3][0].max == 4.0
    with pytest.raises(MsprobeException, match="Maxx"):
        probe.read(run).where("Maxx > 2")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_has_a_row_for_each_item(run: Path, library: str) -> None:
    pytest.importorskip(library)
    frame = probe.read(run).to_frame(library)
    columns = {name: frame[name].to_list() if library == "polars" else list(frame[name]) for name in frame.columns}
    assert list(columns) == [
        "step", "rank", "process", "mode", "record", "base", "number", "direction", "module", "item", "state", "dtype",
        "shape", "elements", "max", "min", "mean", "norm", "requires_grad", "md5", "value", "data_name",
    ]  # fmt: skip
    assert columns["step"] == [0] * 10 + [10] * 6 and columns["rank"] == [0] * 5 + [1] * 5 + [0] * 5 + [1]
    assert columns["item"][:5] == ["input.0", "input.1", "output.0", "input.0", "output.0"]
    assert columns["max"][2] == 3.0 and columns["max"][7] == 4.0 and columns["max"][12] != columns["max"][12]
    assert (columns["base"][0], columns["direction"][0], columns["module"][0]) == (
        "Functional.relu", "forward", "Module.fc.Linear",
    )  # fmt: skip
    assert (columns["shape"][0], columns["elements"][0], columns["value"][1]) == ("[2, 3]", 6, "7")
    assert str(frame["rank"].dtype) == "Int64" and str(frame["norm"].dtype).lower() == "float64"
    # A plain value has no statistics; what is unknown is missing and not NaN in a column of whole numbers.
    assert (frame["max"].is_null() if library == "polars" else frame["max"].isna())[1]


def test_the_tree_knows_what_is_inside_of_what() -> None:
    tree = CallTree({"Module.a.A.forward.0": None, "Torch.sin.0.forward": "Module.a.A.forward.0", "x": "not there"})
    assert tree.roots == ["Module.a.A.forward.0", "x"]
    assert tree.children("Module.a.A.forward.0") == ["Torch.sin.0.forward"] and tree.children("x") == []
    assert tree.module("Torch.sin.0.forward") == tree.module("Module.a.A.forward.0") == "Module.a.A.forward.0"
    assert tree.module("x") is None and tree.module("no such call") is None
    assert str(tree) == "Module.a.A.forward.0\n  Torch.sin.0.forward\nx"


def test_a_damaged_tree_that_goes_round_has_an_end() -> None:
    tree = CallTree({"a": "b", "b": "a", "c": "c"})
    assert sorted(name for _, name in tree.walk()) == ["a", "b", "c"]
    assert tree.module("a") is None and list(tree.around("a")) == ["b"]


HOSTILE = "Functional.<script>alert(1)</script>\x1b[2J.0.forward"


def test_what_a_notebook_shows_is_escaped_and_small(tmp_path: Path) -> None:
    folder = dump(tmp_path / "step0" / "rank0", math.inf)
    content = json.loads((folder / "dump.json").read_text())
    content["data"][HOSTILE] = content["data"][RELU]
    content["data"].update({f"Torch.sin.{n}.forward": content["data"][RELU] for n in range(2000)})
    (folder / "dump.json").write_text(json.dumps(content))
    found = probe.read(folder)
    assert isinstance(found, probe.Dump)
    shown = [found._repr_html_(), found.where("Max > 0")._repr_html_(), probe.Run(tmp_path)._repr_html_()]
    for text in shown:
        assert "<script" not in text and "\x1b" not in text and "<table" in text and len(text) < 20_000
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b" in shown[0]
    assert f"first NaN or infinity: {RELU}.output.0" in shown[0]
    assert "<p>4006 items</p>" in shown[1] and "<p>and 3956 more; to_frame() has them all</p>" in shown[1]


def test_a_missing_library_is_an_error_that_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="polars or pandas; run: pip install polars"):
        probe.read(run).to_frame()
    with pytest.raises(MissingDependency, match="pip install pandas"):
        probe.read(run).to_frame("pandas")
    with pytest.raises(MsprobeException, match="'numpy' is no library for data frames; allowed: polars, pandas"):
        probe.read(run).to_frame("numpy")


# --- which processes of a step are one run, and which process of which run a folder says it is of


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


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"run": 7}', b'{"run": "a", "order": ["x"]}', b"\xff\x00", b"[" * 100_000]
)
def test_a_damaged_file_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PROCESS_FILE).write_bytes(content)
    assert processes.read(str(tmp_path)) is None


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "train.py \udcff " + "x" * 1000
    monkeypatch.setattr(processes, "_present", None)
    processes.write(str(tmp_path), program.split)
    assert list(tmp_path.iterdir()) == []
    began = processes.begin_run()
    processes.write(str(tmp_path), program.split)
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
    processes.write(str(tmp_path), program.split)
    assert list(tmp_path.iterdir()) == []
