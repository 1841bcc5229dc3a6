"""The journal gives back what was written, and reads anything that is no journal as an error or as a shorter one."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack_trees import stacks_of

from probe.common.dump import journal
from probe.common.dump.journal import ADD, MOVE, REPLACE, Header, JournalReader, JournalWriter
from probe.common.errors import DumpFormatError

HEADER = Header("statistics", "mix", "pytorch", None)
# Written by hand after the prose of the format.
HEAD_BODY: list[Any] = [0, {"version": 3, "task": "statistics", "level": "mix", "framework": "pytorch"}]
HEAD_BODY[1].update(dump_data_dir=None, extra_info=True)


def frame(body: Any) -> bytes:
    """One frame as the module's docstring describes it."""
    data = msgspec.msgpack.encode(body)
    return struct.pack("<II", len(data), zlib.crc32(data)) + data


def raw(*bodies: Any, head: Any = HEAD_BODY) -> bytes:
    return b"MSPROBEJ" + b"".join(map(frame, [head, *bodies]))


@contextlib.contextmanager
def reading(data: bytes) -> Iterator[JournalReader]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "dump.journal")
        Path(path).write_bytes(data)
        with JournalReader(path) as reader:
            yield reader


def records_of(data: bytes) -> list[tuple[str, Any]]:
    with reading(data) as reader:
        return list(reader.records())


def written(folder: Path, records: list[tuple[str, int, int, Any]], header: Header = HEADER) -> bytes:
    """The bytes of a journal of these records: name, order, rule, fields."""
    path = folder / "written"
    path.unlink(missing_ok=True)
    writer = JournalWriter(str(path), header)
    for name, order, rule, fields in records:
        writer.record(name, order, -1, None, order, rule, fields)
    writer.close()
    return path.read_bytes()


def test_bytes_are_those_of_the_documented_format(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path / "j"), HEADER)
    writer.stack(7, stacks_of([("/a.py", 3, "f"), ("<string>", 0, "g")], first=6))
    writer.record("Torch.relu.0.forward", 0, 7, "Module.a.A.forward.0", 5, MOVE, {"output": [None]})
    writer.node("Module.a.A.forward.0", 1, -1, None)
    assert writer.frames == 4
    writer.close()
    assert (tmp_path / "j").read_bytes() == raw(
        [4, [[6, -1, ["<string>", 0, "g"]], [7, 6, ["/a.py", 3, "f"]]]],
        [2, "Torch.relu.0.forward", 0, 7, "Module.a.A.forward.0", 5, 1, {"output": [None]}],
        [3, "Module.a.A.forward.0", 1, -1, None],
    )


def test_the_stacks_of_the_first_version_are_read() -> None:
    head = [0, {**HEAD_BODY[1], "version": 1}]
    with reading(raw([1, 7, [["/a.py", 3, "f"], ["/a.py", 1, "g"]]], head=head)) as reader:
        assert reader.stack(7) == [("/a.py", 3, "f"), ("/a.py", 1, "g")]


def test_stacks_of_a_damaged_journal_end_where_they_would_go_in_a_circle() -> None:
    frames = [[0, 1, ["/a.py", 3, "f"]], [1, 1, ["/a.py", 1, "g"]], [5, 4, ["/a.py", 2, "h"]]]
    with reading(raw([4, frames])) as reader:
        assert [reader.stack(number) for number in (0, 1, 5)] == [[tuple(frame)] for _, _, frame in frames]


def test_frames_are_in_the_file_before_the_call_returns(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path / "j"), HEADER)
    for n in range(3):
        writer.record(f"r{n}", n, -1, None, n, REPLACE, {})
        with JournalReader(str(tmp_path / "j")) as reader:
            assert [name for name, _ in reader.records()] == [f"r{i}" for i in range(n + 1)]
    writer.close()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (REPLACE, [("a", {"new": 2}), ("b", {})]),
        (MOVE, [("b", {}), ("a", {"new": 2})]),
        (ADD, [("a", {"old": 1, "new": 2}), ("b", {})]),
    ],
)
def test_a_name_that_comes_again(tmp_path: Path, rule: int, expected: Any) -> None:
    again = [("a", 0, REPLACE, {"old": 1}), ("b", 1, REPLACE, {}), ("a", 2, rule, {"new": 2})]
    assert records_of(written(tmp_path, again)) == expected


def test_records_come_in_their_order_and_calls_as_they_began() -> None:
    data = raw(
        [2, "late", 0, -1, None, 9, 0, {}],
        [2, "no call", -1, -1, None, 4, 0, {}],
        [2, "early", 1, -1, None, 2, 0, {}],
        [3, "between", 5, -1, "late"],
        [2, "again", 3, -1, None, 3, 0, {}],
        [2, "again", 8, -1, "late", 3, 0, {}],
    )
    with reading(data) as reader:
        assert [name for name, _ in reader.records()] == ["early", "again", "no call", "late"]
        # A call began only once, the first frame of its name says when.
        assert [name for name, _ in reader.calls()] == ["late", "early", "again", "between"]


INTEGERS = [0, -1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**40, -(10**40)]


def test_integers_of_any_size(tmp_path: Path) -> None:
    fields = {"values": INTEGERS, "named": {"big": 2**70, "list": [[2**70], 1.0]}}
    assert records_of(written(tmp_path, [("a", 0, REPLACE, fields)])) == [("a", fields)]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", ""),
        ("\0\n\t\x7f", "\0\n\t\x7f"),
        ("ü漢字😀\u2028", "ü漢字😀\u2028"),
        ("a\ud800b", "a\\ud800b"),
        ("\udcff", "\\udcff"),
        ("x" * 100_000, "x" * 100_000),
    ],
)
def test_odd_texts(tmp_path: Path, text: str, read: str) -> None:
    writer = JournalWriter(str(tmp_path / "j"), Header("statistics", "L1", "pytorch", text))
    writer.stack(0, stacks_of([(text, 1, text)]))
    writer.record(f"a{text}", 0, 0, text, 0, REPLACE, {text: [text, {"deep": text}]})
    writer.record("sound", 1, -1, None, 1, REPLACE, {})
    writer.close()
    with JournalReader(str(tmp_path / "j")) as reader:
        assert reader.header.dump_data_dir == read
        assert reader.stack(0) == [(read, 1, read)]
        assert reader.nodes[f"a{read}"].parent == read
        assert list(reader.records()) == [(f"a{read}", {read: [read, {"deep": read}]}), ("sound", {})]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_any_fields_survive(fields: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert records_of(written(Path(folder), [("a", 0, REPLACE, fields)])) == [("a", fields)]


needs_compiled = pytest.mark.skipif(
    journal._FrameWriter is journal.FrameWriterInPython, reason="the compiled writer is not built here"
)
BITS = (5, 7, 8, 15, 16, 31, 32, 63, 64, 70)
SIZES = (15, 16, 31, 32, 255, 256, 65535, 65536)
EDGES: list[Any] = [
    *(sign * (1 << bits) + by for bits in BITS for sign in (1, -1) for by in (-1, 0, 1)),
    *(kind(size) for size in SIZES for kind in ("x".__mul__, b"y".__mul__, [0].__mul__)),
    *({str(key): key for key in range(size)} for size in (15, 16, 65535, 65536)),
    -0.0, float("nan"), float("inf"), True, None, (1, (2,)), {1: 2}, "\ud800", b"",
]  # fmt: skip


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else []


@needs_compiled
@pytest.mark.parametrize("value", [EDGES, deep(30), deep(100)], ids=["edges", "deep", "deeper"])
def test_both_writers_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    records = [(name, 0, REPLACE, {"x": value}) for name in ("a", "b")]
    compiled = written(tmp_path, records)
    monkeypatch.setattr(journal, "_FrameWriter", journal.FrameWriterInPython)
    assert written(tmp_path, records) == compiled


# --- journals of processes that died

FRAMES: list[Any] = [
    [1, 0, [["/a.py", 1, "f"]]],
    [2, "a", 0, 0, None, 0, 0, {"x": 1}],
    [3, "b", 1, -1, None],
    [2, "c", 2, -1, "b", 1, 1, {"y": [2.5, None]}],
    [2, "a", 0, 0, None, 0, 2, {"z": "end"}],
]


def test_a_journal_cut_anywhere_gives_exactly_its_whole_frames() -> None:
    whole = raw(*FRAMES)
    ends = [len(raw(*FRAMES[:n])) for n in range(len(FRAMES) + 1)]
    expected = [records_of(raw(*FRAMES[:n])) for n in range(len(FRAMES) + 1)]
    assert expected[-1] == [("a", {"x": 1, "z": "end"}), ("c", {"y": [2.5, None]})]
    for size in range(len(whole)):
        if size < ends[0]:
            with pytest.raises(DumpFormatError), reading(whole[:size]):
                pass
            continue
        frames = max(n for n, end in enumerate(ends) if end <= size)
        with reading(whole[:size]) as reader:
            assert list(reader.records()) == expected[frames], f"cut at byte {size}"
            assert reader.torn_at == (None if ends[frames] == size else ends[frames]) and reader.lost == 0
            assert len(reader.nodes) == [0, 0, 1, 2, 3, 3][frames]


def test_a_flipped_bit_ends_the_journal_before_its_frame() -> None:
    whole = raw(*FRAMES)
    ends = [len(raw(*FRAMES[:n])) for n in range(len(FRAMES) + 1)]
    expected = [records_of(raw(*FRAMES[:n])) for n in range(len(FRAMES) + 1)]
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        if place < ends[0]:
            with pytest.raises(DumpFormatError), reading(bytes(data)):
                pass
            continue
        frames = max(n for n, end in enumerate(ends) if end <= place)
        with reading(bytes(data)) as reader:
            assert list(reader.records()) == expected[frames], f"bit flipped in byte {place}"
            assert reader.torn_at == ends[frames]


# --- what is no journal

HEAD = HEAD_BODY[1]
LATER = f"dump.journal: frame at byte {len(raw(*FRAMES))}"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no header"),
        (b"MSPROBEJ", "no header"),
        (b'{"task": "statistics"}', "not a journal"),
        (raw(HEAD_BODY), "allowed: one header, as the first frame"),
        (raw(head=FRAMES[0]), "allowed: one header, as the first frame"),
        *((raw(head=[0, {**HEAD, "version": each}]), f"version {each!r}.*reads 1") for each in (0, 4, "1", None)),
        *((raw(head=[0, {**HEAD, key: 5}]), f"header.*{key}") for key in ("task", "level", "framework")),
        *((raw(*FRAMES, body), LATER) for body in ([9, 1], [2, "a"], [3, "a", "0", -1, None], {}, "text", [], None)),
    ],
)
def test_what_is_no_journal_is_refused_with_its_place(data: bytes, said: str) -> None:
    with pytest.raises(DumpFormatError, match=said), reading(data):
        pass


WHOLE, CUT = {"a": [1, {"b": "text"}]}, msgspec.Raw(b"\x81\xa1a")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("fields", [CUT, msgspec.Raw(b"\x80\x01")])
def test_fields_are_refused_even_if_a_later_record_replaces_them(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, fields: msgspec.Raw
) -> None:
    if not compiled:
        monkeypatch.setattr(journal, "indexed", None)
    frames = [[2, "a", 0, -1, None, 0, REPLACE, each] for each in (WHOLE, fields, WHOLE)]
    with pytest.raises(DumpFormatError, match=f"frame at byte {len(raw(frames[0]))}"), reading(raw(*frames)):
        pass


@pytest.mark.parametrize("compiled", [True, False])
def test_numbers_beyond_those_of_any_writer_are_read(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(journal, "indexed", None)
    largest = (1 << 64) - 1
    frames = [[2, "a", largest, -(1 << 63), None, largest, largest, {"n": n}] for n in range(2)]
    with reading(raw(*frames)) as reader:
        assert list(reader.records()) == [("a", {"n": 1})]
        assert reader.nodes == {"a": (largest, -(1 << 63), None)}


def test_a_huge_length_is_not_allocated() -> None:
    for length in (1 << 20, (1 << 30) - 1, 1 << 30, (1 << 32) - 1):
        data = raw(*FRAMES) + struct.pack("<II", length, 0) + b"some bytes"
        tracemalloc.start()
        try:
            with reading(data) as reader:
                assert reader.torn_at == len(raw(*FRAMES))
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


# --- a full disk

FILLS = """
import errno, resource, sys
from probe.common.dump.journal import Header, JournalReader, JournalWriter
path, limited = sys.argv[1], sys.argv[2] == "limit"
if limited:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
writer = JournalWriter(path, Header("statistics", "L1", "pytorch", None))
done, failed = [], 0
for n in range(400):
    try:
        writer.record(f"r{n}", n, -1, None, n, 0, {"text": "x" * (n % 7) * 50})
        done.append(f"r{n}")
    except OSError as error:
        failed += 1
        assert error.errno == (errno.EFBIG if limited else errno.ENOSPC) and error.filename == path, repr(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if limited:
    writer.record("afterwards", 400, -1, None, 400, 0, {})
    done.append("afterwards")
assert writer.frames == 1 + len(done)
writer.close()
with JournalReader(path) as reader:
    found = [name for name, _ in reader.records()]
assert failed > 10 and len(done) > 10, (failed, len(done))
assert found == done and reader.torn_at is None
"""


FILLED_BY_THREADS = """
import os, resource, sys, threading
from probe.common.dump.journal import Header, JournalReader, JournalWriter
path = sys.argv[1]
sys.setswitchinterval(1e-6)

def write(thread):
    for n in range(200):
        name = f"r{thread}.{n}"
        try:
            writer.record(name, n, -1, None, n, 0, {"text": "x" * ((n * 7 + thread) % 13) * 50})
            done.append(name)
        except OSError:
            failed.append(name)

for attempt in range(30):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    writer, done, failed = JournalWriter(path, Header("statistics", "L1", "pytorch", None)), [], []
    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    with JournalReader(path) as reader:
        found = [name for name, _ in reader.records()]
    os.unlink(path)
    assert len(failed) > 10 and len(done) > 10, (len(failed), len(done))
    assert sorted(found) == sorted(done) and reader.torn_at is None, (attempt, reader.torn_at, set(done) - set(found))
    assert writer.frames == 1 + len(done)
"""


CANNOT_BEGIN = """
import os, resource, sys
from probe.common.dump.journal import Header, JournalWriter
path = sys.argv[1]

def links():
    held = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [link for link in held if os.path.lexists(link)]

resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
try:
    JournalWriter(path, Header("statistics", "L1", "pytorch", None))
except OSError as error:
    assert not os.path.lexists(path), error
    # The error is held, and with it all that its functions knew.
    assert not any(path in os.readlink(link) for link in links()), error
else:
    raise AssertionError("the header went into twenty bytes")
"""


IN_PYTHON = """
from probe.common.dump import journal
journal._FrameWriter = journal.FrameWriterInPython
"""


def fill(path: Path, *how: str, program: str = FILLS) -> None:
    """Run a program with the compiled writer of frames, where there is one, and with that in Python."""
    for kind in ("", IN_PYTHON):
        fill_once(path, how, kind + program)


def fill_once(path: Path, how: tuple[str, ...], program: str) -> None:
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), *how], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_thread_that_finds_the_disk_full_cuts_off_nothing_of_another(tmp_path: Path) -> None:
    fill(tmp_path / "dump.journal", program=FILLED_BY_THREADS)


def test_a_journal_that_cannot_be_begun_is_gone_and_open_nowhere(tmp_path: Path) -> None:
    fill(tmp_path / "dump.journal", program=CANNOT_BEGIN)
