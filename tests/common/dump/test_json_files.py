"""The json files of a dump: their text, and that they appear whole, private and never through a link."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stack_trees import stacks_of

from probe.common import files
from probe.common.callstack import Frame, StackTree
from probe.common.dump import journal as journals
from probe.common.dump import json_files
from probe.common.dump.journal import ADD, MOVE, REPLACE, Header, JournalWriter
from probe.common.dump.json_files import encode, encode_as_python
from probe.common.dump.layout import JOURNAL_FILE
from probe.common.errors import DumpFormatError, FileCheckException

# --- the json files of a dump: their text, and that they appear whole, private and never through a link

NAN, INFINITY = float("nan"), float("inf")
TENSOR_KEYS = ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad")


def header(level: str = "mix", **more: Any) -> Header:
    return Header(**{"task": "statistics", "level": level, "framework": "pytorch", "dump_data_dir": None, **more})


@pytest.fixture(autouse=True)
def usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# --- values

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
STATISTIC = st.floats() | st.integers() | st.booleans() | st.none()
TENSORS = st.fixed_dictionaries(
    {
        "type": st.just("torch.Tensor") | st.text(),
        "dtype": st.just("torch.float32") | st.text(),
        "shape": st.lists(st.integers(0, 9) | st.none(), max_size=3),
        **dict.fromkeys(TENSOR_KEYS[3:7], STATISTIC),
        "requires_grad": st.booleans(),
    }
)
VALUES = st.recursive(
    SCALARS | TENSORS | st.builds(lambda entry, more: {**entry, **more}, TENSORS, st.dictionaries(st.text(), SCALARS)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
ENTRY = dict(zip(TENSOR_KEYS, ("torch.Tensor", "torch.float32", [2, 3], 1.5, -0.0, NAN, 1e300, False)))


def dumps(value: Any, indent: int) -> str:
    """What `json` writes at this depth: every line but the first stands further to the right."""
    return json.dumps(value, indent=1).replace("\n", "\n" + " " * indent)


@given(VALUES, st.integers(0, 3))
@example([NAN, INFINITY, -INFINITY, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 0.1, 10**30, True], 0)
@example({"": {}, "a": [], "b": [[], {}, [{}]], '\ud800\u2028\x00"\\': "\udcffé\x7f😀"}, 2)
@example([ENTRY, {**ENTRY, "Max": 7}, {**ENTRY, "shape": [3, 2]}, {**ENTRY, "requires_grad": True}], 1)
@example(["a:NaN,b", {":NaN": NAN, "x": '"\\u0000NaN"', "\0NaN": ["\0NaN", -INFINITY]}], 1)
@example({"a": ["[NaN]", NAN, "-Infinity,", {"b": INFINITY}]}, 0)
@example(NAN, 0)
@example([{**ENTRY, "md5": "00000000"}, {**ENTRY, "type": "100%s %d Tensor"}, {**ENTRY, "shape": []}, ENTRY], 1)
def test_text_is_what_json_writes(value: Any, indent: int) -> None:
    assert encode_as_python(value, indent).decode() == dumps(value, indent)


NUMBERS = st.floats() | st.sampled_from([1e-4, 9.9e-5, 1e-5, 1.5e-7, 1e16, 9999999999999998.0, 5e-324, -1e-9, 2.0**63])
TEXTS = st.text(st.sampled_from('é\x7f\x00\x1f\n\r\t\b\f"\\/\u2028 :,0123e-.null{}[]😀\udc80'), max_size=12)


@given(VALUES | st.lists(NUMBERS | TEXTS) | st.dictionaries(TEXTS, NUMBERS | TEXTS), st.integers(0, 3))
@example({"a": [None, NAN], "b": None}, 0)
@example([None, INFINITY, -INFINITY], 1)
@example({"null": 1.5, "b": None, "c": [2**64, -(2**63) - 1, 10**30]}, 2)
@example(["\xcb\x7f\xf0", None, [[], {}, ""]], 0)
def test_compiled_text_is_that_of_json_but_for_the_spelling_of_exponents(value: Any, indent: int) -> None:
    mine = encode(value, indent).decode("ascii").split("\n")
    theirs = dumps(value, indent).split("\n")
    assert len(mine) == len(theirs)
    for line, expected in zip(mine, theirs):
        if line != expected:
            # Only a number may be spelt in another way, and is to the last bit the same.
            number, other = (text.rpartition(" ")[2].rstrip(",") for text in (line, expected))
            assert float(number).hex() == float(other).hex()
            assert line.replace(number, "") == expected.replace(other, "")


# --- the files of a journal


def make(folder: Path, head: Header, put: Callable[[JournalWriter], None]) -> dict[str, str]:
    """Write a journal and then the files from it; their texts by name."""
    writer = JournalWriter(str(folder / JOURNAL_FILE), head)
    put(writer)
    writer.close()
    assert json_files.write(str(folder)) == head
    return {path.name: path.read_text() for path in sorted(folder.glob("*.json"))}


def record(writer: JournalWriter, name: str, number: int, stack: int = -1, parent: str | None = None) -> None:
    writer.record(name, number, stack, parent, number, REPLACE, {"output": [{"type": "float", "value": NAN}, ENTRY]})


def test_files_are_what_json_would_write(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("first\n  second()  # é\n")

    def put(writer: JournalWriter) -> None:
        writer.stack(1, stacks_of([(str(source), 2, "f"), (str(source), 1, "<module>")]))
        record(writer, "Torch.relu.0.forward", 1, 1, "Module.a.A.forward.0")
        writer.record("Module.a.A.forward.0", 0, 1, None, 2, MOVE, {"output": []})
        writer.record("Module.a.A.parameters_grad.0", -1, -1, None, 3, ADD, {"w": [ENTRY]})
        writer.record("Module.a.A.parameters_grad.0", -1, -1, None, 4, ADD, {"b": [ENTRY]})
        writer.node("Torch.abs.0.forward", 2, 1, None)

    folder = tmp_path / "dump"
    folder.mkdir()
    texts = make(folder, header(dump_data_dir="/data/é"), put)
    data = {
        "Torch.relu.0.forward": {"output": [{"type": "float", "value": NAN}, ENTRY]},
        "Module.a.A.forward.0": {"output": []},
        "Module.a.A.parameters_grad.0": {"w": [ENTRY], "b": [ENTRY]},
    }
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": "/data/é"}
    names = ["Module.a.A.forward.0", "Torch.relu.0.forward", "Torch.abs.0.forward"]
    tree = dict(zip(names, (None, "Module.a.A.forward.0", None)))
    frames = [f"File {source}, line 2, in f, \n second()  # é", f"File {source}, line 1, in <module>, \n first"]
    assert texts == {
        "dump.json": json.dumps({**head, "data": data}, indent=1),
        "construct.json": json.dumps(tree, indent=1),
        "stack.json": json.dumps({"0": [names, frames]}, indent=1),
    }
    assert {mode(path) for path in folder.iterdir()} == {0o640}


def test_stacks_that_are_too_long_are_cut_and_share_one_entry(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("start()\nx = self.next(x)\nx = relu(x)\n")
    depth = 20_000

    def put(writer: JournalWriter) -> None:
        tree: StackTree[Frame] = StackTree()
        tree.add(0, -1, (str(source), 1, "<module>"))
        for number in range(1, depth):
            tree.add(number, number - 1, (str(source), 2, "forward"))
        for number in range(1, depth, 50):
            tree.add(depth + number, number - 1, (str(source), 3, "forward"))
            writer.stack(depth + number, tree)
            record(writer, f"r{number}", number, depth + number)

    texts = make(tmp_path, header(), put)
    stacks = list(json.loads(texts["stack.json"]).values())
    names, frames = stacks[-1]
    assert [len(each[1]) for each in stacks] == [2, 52, 102, 152, 202, 252, 257] and len(names) == 394
    assert [frame.split(" \n ")[-1] for frame in (frames[0], frames[-1])] == ["x = relu(x)", "start()"]
    assert frames[128] == "... the frames in the middle of this long stack are left out ..."
    assert sum(map(len, texts.values())) < 500_000
    journal = tmp_path / JOURNAL_FILE
    assert journal.stat().st_size < 250 * depth, "each frame once"


def test_a_record_that_cannot_be_read_leaves_the_old_files(tmp_path: Path) -> None:
    texts = make(tmp_path, header(), lambda writer: record(writer, "r", 0))
    writer = JournalWriter(str(tmp_path / "worse"), header())
    record(writer, "r", 0)
    writer.record("s", 1, -1, None, 1, REPLACE, {"a": msgspec.msgpack.Ext(9, b"")})
    writer.close()
    os.replace(tmp_path / "worse", tmp_path / JOURNAL_FILE)
    with pytest.raises(DumpFormatError):
        json_files.write(str(tmp_path))
    assert texts == {path.name: path.read_text() for path in sorted(tmp_path.glob("*.json"))}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*texts, JOURNAL_FILE])


def test_stacks_of_the_same_text_are_one_entry(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("one\ntwo\n")

    def put(writer: JournalWriter) -> None:
        # Two places in one line, the same place again, another line, and a stack without any source.
        tree: StackTree[Frame] = StackTree()
        tree.add(0, -1, ("<string>", 5, "g"))
        for number, line in enumerate([1, 1, 2], 1):
            tree.add(number, 0, (str(source), line, "f"))
        for n, stack in enumerate([3, 1, 2, 1, 0, -1]):
            writer.stack(stack, tree)
            record(writer, f"r{n}", n, stack)

    stacks = json.loads(make(tmp_path, header(), put)["stack.json"])
    assert [names for names, _ in stacks.values()] == [["r0"], ["r1", "r2", "r3"], ["r4"]]
    assert list(stacks) == ["0", "1", "2"] and stacks["2"][1] == []
    assert len(stacks["0"][1]) == len(stacks["1"][1]) == 1 and stacks["0"][1] != stacks["1"][1]


# --- the same in C and in Python

needs_compiled = pytest.mark.skipif(json_files.laid_out is None, reason="the compiled text is not built here")
KEYS = st.sampled_from(
    [
        "type",
        "tensor",
        "sketch",
        "from",
        "made",
        "a",
        "output",
        "input_args",
        "parameters_grad.1",
        "parameters_grad",
        "é",
    ]
)
PARTS = SCALARS | NUMBERS | TEXTS | st.sampled_from([b"", b"s" * 256, b"t" * 256, b"t" * 292, "view:a", -3, 3])
FIELDS = st.recursive(PARTS, lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=5))
RECORD_NAMES = st.sampled_from(["Torch.relu.0.forward", "Module.m.M.parameters_grad.0", "saved.0.debug", "é"])
FRAMES = st.lists(st.tuples(RECORD_NAMES, st.sampled_from([REPLACE, MOVE, ADD]), FIELDS), max_size=6)
SKETCHED = {**ENTRY, "Mean": 1e-7, "sketch": b"s" * 256, "from": 1, "made": 2}


@needs_compiled
@given(FRAMES)
@example(
    [
        (
            "Torch.relu.0.forward",
            REPLACE,
            {"input_args": [SKETCHED, {"a": SKETCHED}], "output": [{**SKETCHED, "Mean": 1}]},
        )
    ]
)
@example([("Module.m.M.parameters_grad.0", ADD, {each: [SKETCHED]}) for each in ("w", "b", "w", "parameters_grad")])
@example([("r", REPLACE, {"parameters_grad": {"w": [SKETCHED]}, "output": {"type": "P", "tensor": SKETCHED}, "a": {}})])
@example([("saved.0.debug", MOVE, {**SKETCHED, "from": "view:data:x", "sketch": b"t" * 292})])
def test_compiled_code_writes_the_same_files(tmp_path_factory: Any, frames: list[tuple[str, int, Any]]) -> None:
    folder = tmp_path_factory.mktemp("dump")
    writer = JournalWriter(str(folder / JOURNAL_FILE), header())
    for number, (name, rule, fields) in enumerate(frames):
        writer.record(name, number, -1, None, number, rule, fields)
    writer.close()
    written = []
    for compiled in (json_files.laid_out, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_files, "laid_out", compiled)
            if compiled is None:
                patch.setattr(journals, "indexed", None)
            json_files.write(str(folder))
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1]


@needs_compiled
def test_compiled_code_leaves_a_record_of_another_form_to_python() -> None:
    frame = msgspec.msgpack.encode({"output": [SKETCHED, [1, -300, 70_000, 2**40, "x" * 40, NAN]], "a": {"b": None}})
    rows: json_files.Rows = [], [], [], []

    def laid_out(*frames: bytes) -> bytes | None:
        return json_files.laid_out("r", list(frames), rows, msgspec.json.encode, lambda _: b"[]")

    with pytest.raises(ValueError, match="does not write a list of numbers"):
        laid_out(frame)
    for part in rows:
        part.clear()
    for size in range(len(frame)):
        assert laid_out(frame[:size]) is None, size
    for other in (frame + b"\0", b"\xc0", b"\xdf\xff\xff\xff\xff\xa1a", b"\x81\xa1a" + b"\x91" * 5000, b"\x81\x01\x01"):
        assert laid_out(other) is None
    assert laid_out(*[b"\x80"] * 65) is None and rows == ([], [], [], [])


SECOND = {"type": "P", "tensor": {"type": "Q"}}
TWICE = msgspec.msgpack.encode({"output": SECOND}).replace(b"\x82\xa4type\xa1P", b"\x83\xa4type\xa1P\xa6tensor\x02")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        *({"output": [{**SKETCHED, "from": maker}]} for maker in (1 << 63, (1 << 64) - 1, -(1 << 63))),
        {"output": [SKETCHED], 7: {"w": [SKETCHED]}},
        msgspec.Raw(TWICE),
    ],
)
def test_odd_values_of_a_damaged_journal_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, fields: Any
) -> None:
    if not compiled:
        monkeypatch.setattr(json_files, "laid_out", None)
    written = make(tmp_path, header(), lambda writer: writer.record("r", 0, -1, None, 0, REPLACE, fields))
    found = json.loads(written["dump.json"])["data"]["r"]
    assert found["output"] == SECOND if isinstance(fields, msgspec.Raw) else len(found) == len(fields)


def test_what_is_no_file_has_no_source(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = threading.Thread(target=lambda: pipe.write_text("x = 1\n"), daemon=True)
    writing.start()

    def put(writer: JournalWriter) -> None:
        tree: StackTree[Frame] = StackTree()
        for number, path in enumerate(("a\0b", str(pipe))):
            tree.add(number, -1, (path, 1, "f"))
            writer.stack(number, tree)
            record(writer, f"r{number}", number, number)

    assert json.loads(make(tmp_path, header(), put)["stack.json"]) == {"0": [["r0", "r1"], []]}
    writing.join(0.05)
    assert writing.is_alive(), "somebody has opened the pipe"
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writing.join()
    os.close(reading)


def test_a_damaged_step_of_an_optimizer_is_an_error_of_the_journal(tmp_path: Path) -> None:
    for content in ({"optimizer": "AdamW"}, {"gradient": b"", "update": "text"}):
        with pytest.raises(DumpFormatError, match=r"dump\.journal: a step of an optimizer is not readable"):
            make(tmp_path, header(), lambda writer, content=content: writer.update(content))  # type: ignore[misc]
        assert not (tmp_path / "updates.npz").exists()
        (tmp_path / JOURNAL_FILE).unlink()


def test_calls_that_are_those_of_the_step_before_are_written_the_same(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    written: list[dict[str, str]] = []
    steps = [
        ("a", 1, ""),
        ("a", 1, "x = 1"),
        ("a", 1, "x = 1"),
        ("b", 1, "x = 1"),
        ("b", 2, "x = 1"),
        ("a", 1, "x = 1"),
    ]
    for number, (parent, line, text) in enumerate(steps):
        if text:
            source.write_text(f"{text}\ny = 2\n")
            linecache.checkcache()

        def put(writer: JournalWriter, parent: str = parent, line: int = line) -> None:
            writer.stack(0, stacks_of([(str(source), line, "f")]))
            record(writer, "r", 0, 0, parent)

        folder = tmp_path / str(number)
        folder.mkdir()
        written.append(make(folder, header(), put))
    parents = [json.loads(each["construct.json"])["r"] for each in written]
    lines = [json.loads(each["stack.json"])["0"][1] for each in written]
    assert parents == ["a", "a", "a", "b", "b", "a"]
    assert [len(each) for each in lines] == [0, 1, 1, 1, 1, 1], "a file of source code that is there later is found"
    assert [each[0].split()[-1] for each in lines[1:]] == ["1", "1", "1", "2", "1"]


# --- files and folders


def test_a_block_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    for error in (ValueError, KeyboardInterrupt, OSError):
        with pytest.raises(error), files.replacing(str(path)) as stream:
            stream.write(b"half of the new")
            raise error
        assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.json"]


def test_a_writer_killed_inside_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    code = (
        "import os, signal, sys; from probe.common import files\n"
        "with files.replacing(sys.argv[1]) as stream:\n"
        "    stream.write(b'n' * (3 << 20)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    assert subprocess.run([sys.executable, "-c", code, str(path)], env=environment).returncode == -9
    assert path.read_text() == "old" and len(os.listdir(tmp_path)) == 2


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link.json"
    target.write_text("mine")
    link.symlink_to(target)
    for append in (False, True):
        with pytest.raises(OSError, match="symbolic link"):
            files.open_for_writing(str(link), append)
    with pytest.raises(OSError, match="symbolic link"):
        JournalWriter(str(link), header())
    # A link laid where the file is written aside, and one where it is to appear, are replaced and not followed.
    (tmp_path / f"link.json.{os.getpid()}.tmp").symlink_to(target)
    with files.replacing(str(link)) as stream:
        stream.write(b"new")
    assert target.read_text() == "mine" and link.read_text() == "new" and not link.is_symlink()


def test_folders_and_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    files.make_folder(str(folder))
    files.make_folder(str(folder))
    assert {mode(path) for path in (folder, folder.parent, folder.parent.parent)} == {0o750}
    for append in (False, True):
        files.open_for_writing(str(folder / f"f{append}"), append).close()
    json_files.skeleton(str(folder), header(), False)
    assert {mode(path) for path in folder.iterdir()} == {0o640}


def test_what_is_no_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for path, match in [
        ("link", "link is a symbolic link"),
        ("dangling", "dangling is a symbolic link"),
        ("dangling/below", "dangling exists and is not a folder"),
        ("file", "file exists and is not a folder"),
        ("file/below/deep", "file exists and is not a folder"),
        ("x" * 300, "cannot create folder .*: File name too long"),
    ]:
        with pytest.raises(FileCheckException, match=match):
            files.make_folder(str(tmp_path / path))
    files.make_folder(str(tmp_path / "link" / "below"))
    assert (tmp_path / "real" / "below").is_dir(), "only the folder itself must be no link"


def test_relative_paths_and_races_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import sys; from probe.common import files\nfor n in range(300): files.make_folder(f'{sys.argv[1]}/{n}/x')"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    ranks = [subprocess.Popen([sys.executable, "-c", code, "./dump"], env=environment) for _ in range(3)]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    assert len(os.listdir(tmp_path / "dump")) == 300


# --- files that appear whole, whatever their names are


@pytest.mark.parametrize("name", ["a", "a" * 240, "a" * 255, "ü" * 127])
def test_a_name_as_long_as_a_file_system_takes_is_written(tmp_path: Path, name: str) -> None:
    with files.replacing(str(tmp_path / name)) as stream:
        stream.write(b"content")
        (aside,) = os.listdir(tmp_path)
        assert aside != name and len(os.fsencode(aside)) <= 255
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_bytes() == b"content"
