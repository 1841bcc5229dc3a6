"""Every command, and Python, finds the same dumps at the same path, or says the same of it."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, tensor, write, write_journal

import probe
from probe.api.cli import main
from probe.api.packing import pack
from probe.common.dump.layout import JOURNAL_FILE, PROCESS_FILE
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.runs import find_dumps
from probe.common.errors import FileCheckException

RECORD = call([tensor()])
CALL = "Torch.sin.0.forward"


def folder(path: Path, run: str = "", order: int = 0, written: int = 10, file: str = "dump.json") -> None:
    if file == JOURNAL_FILE:
        write_journal(path, {CALL: RECORD})
    else:
        (write(path, {CALL: RECORD}) / "dump.json").rename(path / file)
    if run:
        (path / PROCESS_FILE).write_text(json.dumps({"run": run, "order": [order]}))
    for each in path.iterdir():
        os.utime(each, (written, written))


# --- the table: a command a row


def _command(*words: str) -> Callable[[str, str], str]:
    """What a command does with a path; returns its error."""

    def run(path: str, out: str) -> str:
        given = [{"PATH": path, "OUT": out}.get(word, word) for word in words]
        main(given)
        return f"msprobe {words[0]}: "

    return run


def _python(name: str, *more: Any) -> Callable[[str, str], str]:
    """The same of a function of Python."""

    def run(path: str, out: str) -> str:
        given = [{"PATH": path}.get(word, word) if isinstance(word, str) else word for word in more]
        found = getattr(probe, name)(path, *given)
        if isinstance(found, probe.Run):
            list(found)
        return ""

    return run


READERS = {
    "show": _command("show", "PATH", "--json"),
    "show, lines": _command("show", "PATH"),
    "compare": _command("compare", "-tp", "PATH", "-gp", "PATH", "-o", "OUT", "--jobs", "1"),
    "compare -da": _command("compare", "-tp", "PATH", "-gp", "PATH", "-o", "OUT", "-da", "--jobs", "1"),
    "compare --html": _command("compare", "-tp", "PATH", "-gp", "PATH", "-o", "OUT", "--html", "--jobs", "1"),
    "graph_visualize": _command("graph_visualize", "-tp", "PATH", "-o", "OUT", "--jobs", "1"),
    "graph_visualize, two": _command("graph_visualize", "-tp", "PATH", "-gp", "PATH", "-o", "OUT", "--jobs", "1"),
    "overflow_check": _command("overflow_check", "-i", "PATH", "-o", "OUT", "--no_page", "--jobs", "1"),
    "acc_check": _command("acc_check", "-api_info", "PATH", "-o", "OUT"),
    "multi_acc_check": _command("multi_acc_check", "-api_info", "PATH", "-o", "OUT", "-n", "1"),
    "probe.read": _python("read"),
    "probe.Run": _python("Run"),
    "probe.verdict": _python("verdict", "PATH"),
    "probe.graph_diff": _python("graph_diff", "PATH"),
    "probe.find_overflow": _python("find_overflow"),
}
OF_ONE = {
    "replay": _command("replay", "PATH", "Torch.sin.0"),
    "probe.replay": _python("replay", "Torch.sin.0"),
    "probe.acc_check": _python("acc_check"),
    "probe.open_graph": _python("open_graph"),
}
ALL = {**READERS, **OF_ONE}


class Found:
    """The folders of the dumps that were opened, and the error."""

    def __init__(self, name: str, path: Path, out: Path, capsys: Any, monkeypatch: Any) -> None:
        opened: dict[str, None] = {}
        made = Dump.__init__

        def noting(dump: Dump, source: Any) -> None:
            opened[os.path.dirname(os.path.abspath(source.path))] = None
            made(dump, source)

        monkeypatch.setattr(Dump, "__init__", noting)
        capsys.readouterr()
        self.error = ""
        try:
            prefix = ALL[name](str(path), str(out))
            said = [line for line in capsys.readouterr().err.splitlines() if prefix and line.startswith(prefix)]
            self.error = said[-1].removeprefix(prefix) if said else ""
        except (probe.common.errors.MsprobeException, OSError) as error:
            self.error = str(error)
        self.folders = list(opened)


@pytest.fixture
def found(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda name, path: Found(name, path, tmp_path / "out", capsys, monkeypatch)


# --- which of several processes, and in which folders


RUNS: dict[str, tuple[list[tuple[str, str, int, int]], list[str]]] = {
    "siblings": (
        [("step0/proc8", "a", 1, 10), ("step0/proc7", "a", 2, 11), ("step1/proc7", "a", 2, 12)],
        ["step0/proc8", "step0/proc7", "step1/proc7"],
    ),
    "siblings and an earlier run": (
        [("step0/proc7", "a", 1, 1), ("step0/proc8", "b", 1, 9), ("step0/proc9", "b", 2, 9), ("step0/proc6", "", 0, 2)],
        ["step0/proc8", "step0/proc9"],
    ),
    "ranks": ([("step0/rank0", "", 0, 1), ("step0/rank1", "", 0, 2)], ["step0/rank0", "step0/rank1"]),
    "ranks and perhaps another run": (
        [("step0/rank0", "", 0, 1), ("step0/rank1", "", 0, 2), ("step0/proc7", "", 0, 9)],
        ["step0/rank0", "step0/rank1"],
    ),
    "processes of which nothing is known": (
        [("step0/proc7", "", 0, 9), ("step0/proc8", "", 0, 1)], ["step0/proc7"],
    ),
    "one process": ([("step0/proc7", "", 0, 1)], ["step0/proc7"]),
    "partly a graph": (
        [(f"{mode}/step{step}/rank0", "", 0, 1) for mode in ("graph", "pynative") for step in (0, 2)],
        ["graph/step0/rank0", "pynative/step0/rank0", "graph/step2/rank0", "pynative/step2/rank0"],
    ),
    "partly a graph, and steps beside it": (
        [("graph/step1/rank0", "", 0, 1), ("step0/rank0", "", 0, 1)], ["step0/rank0", "graph/step1/rank0"],
    ),
    "a step without dumps": ([("step1/rank0", "", 0, 1), ("step0/notes", "", 0, 1)], ["step1/rank0"]),
    "ranks without steps": ([("rank2", "", 0, 1), ("rank10", "", 0, 1)], ["rank2", "rank10"]),
}  # fmt: skip
GIVEN = ["run", "step", "process", "file"]


@pytest.mark.sampled()
@pytest.mark.parametrize("give", GIVEN)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", ALL)
def test_the_same_dumps_are_found(tmp_path: Path, found: Any, name: str, run: str, give: str) -> None:
    made, expected = RUNS[run]
    root = tmp_path / "run"
    for each, of, order, written in made:
        folder(root / each, of, order, written)
    last = root / expected[-1]
    path = {"run": root, "step": last.parent, "process": last, "file": last / "dump.json"}[give]
    files = [root / each / "dump.json" for each in expected]
    wanted = [str(file.parent) for file in files if path in (file, *file.parents)]
    seen = found(name, path)
    if name in OF_ONE and len(wanted) > 1:
        assert seen.error.startswith(f"{path} holds {len(wanted)} dumps; give the folder of one, such as {wanted[0]}")
        assert seen.folders == []
        return
    assert "dumps;" not in seen.error and "no dump" not in seen.error
    assert sorted(seen.folders) == sorted(wanted)
    assert [str(each.folder) for each in find_dumps(str(path)).dumps] == wanted


@pytest.mark.sampled(least=4)
@pytest.mark.parametrize("file", ["dump.json", "debug.json", JOURNAL_FILE, "renamed.json"])
@pytest.mark.parametrize("name", ALL)
def test_a_file_of_records_is_one_dump_whatever_it_is_called(tmp_path: Path, found: Any, name: str, file: str) -> None:
    folder(tmp_path / "run" / "step0" / "rank0", file=file)
    seen = found(name, tmp_path / "run" / "step0" / "rank0" / file)
    assert seen.folders == [str(tmp_path / "run" / "step0" / "rank0")]


# acc_check needs the values of tensors, which a pack does not have.
@pytest.mark.parametrize("name", [name for name in ALL if "acc_check" not in name])
def test_a_pack_is_read_like_its_folder(tmp_path: Path, found: Any, name: str) -> None:
    folder(tmp_path / "run" / "step0" / "rank0")
    pack(str(tmp_path / "run"))
    seen = found(name, tmp_path / "run.zip")
    assert [each.split("/run/")[1] for each in seen.folders] == ["step0/rank0"]
    assert str(tmp_path) not in seen.folders[0]


# --- what is no dump


def _cut_pack(path: Path) -> None:
    folder(path / "step0" / "rank0")
    whole = Path(pack(str(path)).path).read_bytes()
    (path / "cut.zip").write_bytes(whole[: len(whole) // 2])


def _other_zip(path: Path) -> None:
    path.mkdir()
    with zipfile.ZipFile(path / "other.zip", "w") as archive:
        archive.writestr("step0/rank0/dump.json", "{}")


def _pipe(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "dump.json")


def _stacks(path: Path) -> None:
    folder(path)
    (path / "stack.json").write_text("{}")


def _damaged(path: Path) -> None:
    path.mkdir()
    (path / "dump.json").write_text('{"task": "statistics", "data": {"a": 1,, }}')


def _nested(path: Path) -> None:
    for each in ("logs", "step0/rank0", "graph"):
        (path / each).mkdir(parents=True)


ALLOWED = (
    "give dump.json, debug.json, dump.journal, the folder of a process or a step, a folder of steps, or a pack of "
    "a run."
)
WRONG: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "missing": (lambda path: None, "", f"{{}} does not exist; {ALLOWED}"),
    "a link to nowhere": (lambda path: path.symlink_to("nowhere"), "", f"{{}} does not exist; {ALLOWED}"),
    "an empty folder": (lambda path: path.mkdir(), "", f"{{}} holds no dump; {ALLOWED}"),
    "folders without records": (_nested, "", f"{{}} holds no dump; {ALLOWED} It holds graph, logs, step0."),
    "a rank without records": (_nested, "step0/rank0", f"{{}} holds no dump; {ALLOWED}"),
    "another file of a dump": (_stacks, "stack.json", f"{{}} holds no records; {ALLOWED}"),
    "a pipe": (_pipe, "dump.json", f"{{}} is neither a file nor a folder; {ALLOWED}"),
    "a damaged file": (_damaged, "", "{}/dump.json: damaged at byte "),
    "a pack that is cut short": (_cut_pack, "cut.zip", "{} is not a pack of a run: "),
    "another zip file": (_other_zip, "other.zip", "{} is no pack of a run: it does not begin with "),
    "an empty file": (lambda path: path.write_text(""), "", "{}: the file is empty."),
    "some text": (lambda path: path.write_text("not a dump"), "", "{}: damaged at byte "),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ALL)
def test_the_same_is_said_of_what_is_no_dump(tmp_path: Path, found: Any, name: str, wrong: str) -> None:
    make, given, text = WRONG[wrong]
    make(tmp_path / "run")
    path = tmp_path / "run" / given if given else tmp_path / "run"
    seen = found(name, path)
    assert seen.error.startswith(text.format(path)) and "\n" not in seen.error
    with pytest.raises(probe.common.errors.MsprobeException) as expected:
        list(probe.Run(path))
    assert seen.error == str(expected.value)


def test_an_empty_path_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """As an unset variable of a shell gives it."""
    with pytest.raises(FileCheckException, match="the path is empty"):
        probe.read("")
    assert main(["recover", ""]) == 2
    assert "argument DIR: the path is empty" in capsys.readouterr().err


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize("name", ALL)
def test_a_folder_that_cannot_be_read_is_an_error_and_not_an_empty_one(
    tmp_path: Path, found: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path / "run" / "step0" / "rank0")
    listed = os.listdir

    def listing(path: Any = ".") -> list[str]:
        if str(path).endswith("step0"):
            # Root, as whom tests may run, may read everything.
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", listing)
    seen = found(name, tmp_path / "run")
    assert seen.error == f"[Errno 13] Permission denied: '{tmp_path / 'run' / 'step0'}'" and seen.folders == []


@pytest.mark.parametrize("name", READERS)
def test_a_rank_without_records_is_named(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder(tmp_path / "run" / "step0" / "rank0")
    (tmp_path / "run" / "step0" / "rank1").mkdir()
    try:
        READERS[name](str(tmp_path / "run"), str(tmp_path / "out"))
    except FileCheckException as error:
        assert "rank1" in str(error)
    assert "rank1" in capsys.readouterr().err


# --- a dump in two modes


def test_of_two_modes_of_a_step_one_is_asked_for(tmp_path: Path) -> None:
    for each in ("graph/step0/rank0", "pynative/step0/rank0"):
        folder(tmp_path / each)
    run = probe.Run(tmp_path)
    assert run.modes == ["graph", "pynative"] and "graph and pynative" in repr(run)
    with pytest.raises(LookupError, match=r"^step 0 has modes graph, pynative; give one .*: run\[0, 0, 'graph'\]$"):
        run[0, 0]
    assert run[0, 0, "pynative"].path == str(tmp_path / "pynative" / "step0" / "rank0" / "dump.json")


def test_overflow_is_told_of_the_mode_in_which_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for each in ("graph/step0/rank0", "graph/step1/rank0", "pynative/step0/rank0", "pynative/step1/rank0"):
        folder(tmp_path / "run" / each)
    bad = call([tensor()], [tensor(float("nan"))])
    for step in (0, 1):
        write(tmp_path / "run" / f"pynative/step{step}/rank0", {CALL: bad})
    main(["overflow_check", "-i", str(tmp_path / "run"), "-o", str(tmp_path / "out")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"pynative step 0, rank 0: {CALL} (origin")
    assert "Later steps with findings: pynative 1." in lines
    report = json.loads((tmp_path / "out" / "overflow_report.json").read_text())
    assert [(step["mode"], step["step"], len(step["findings"])) for step in report["steps"]] == [
        ("graph", 0, 0), ("pynative", 0, 1), ("graph", 1, 0), ("pynative", 1, 1),
    ]  # fmt: skip
    assert report["steps"][3]["findings"][0]["growth"] == []


@pytest.mark.parametrize("give", ["", "graph", "graph/step0", "graph/step0/rank0"])
def test_recover_makes_the_files_of_the_dumps_that_the_others_find(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], give: str
) -> None:
    for each in ("graph/step0/rank0", "graph/step0/rank1", "pynative/step0/rank0"):
        folder(tmp_path / "run" / each, file=JOURNAL_FILE)
    path = tmp_path / "run" / give
    assert main(["recover", str(path)]) == 0
    made = [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert made == [each.folder for each in find_dumps(str(path)).dumps] and made
    shutil.rmtree(tmp_path / "run")
    assert main(["recover", str(path)]) == 2
    with pytest.raises(FileCheckException) as expected:
        probe.read(path)
    assert capsys.readouterr().err == f"msprobe recover: {expected.value}\n"
