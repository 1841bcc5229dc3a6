"""The files of a dump made from its journal: encoding and writing.

Each is written aside and renamed. Indented by one blank; NaN and the infinities as Python's json writes them, other
numbers with the fewest digits that give the same value back.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

import msgspec

from probe.common import files
from probe.common.callstack import Frame
from probe.common.dump import update_file
from probe.common.dump.journal import Header, JournalReader, Node
from probe.common.dump.layout import (
    CONSTRUCT_FILE,
    JOURNAL_FILE,
    STACK_FILE,
    is_of_rank,
    is_without_rank,
)
from probe.common.dump.sketch_file import AT_ONCE
from probe.common.dump.sketch_writer import SketchWriter
from probe.common.dump.stack_text import frame_text

try:
    from probe.common.dump._records import laid_out
except ImportError:  # not built here
    laid_out = None  # type: ignore[assignment]

quote = json.encoder.encode_basestring_ascii

Rows = tuple[list[str], list[Optional[bytes]], list[Union[int, str, None]], list[Optional[int]]]
"""The names of entries, their sketches, makers and numbers."""
_on_one_line = json.JSONEncoder(separators=(",", ":")).encode
_MARKS = (("-Infinity", r'"\u0000-"'), ("Infinity", r'"\u0000+"'), ("NaN", r'"\u0000N"'))
"""The text that stands for a number that JSON lacks. Inside a text the quotes end it early, which is no JSON."""
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""In MessagePack: a float whose exponent has all bits set. Other bytes can look the same, which costs time only."""
_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


def encode(value: Any, indent: int) -> bytes:
    """The text of `value` at a depth of `indent`; its numbers have the fewest digits that give the same value back.

    A number that is small or large then has its exponent as 1e-7, where Python writes 1e-07.
    """
    text = _compiled(value, indent)
    return encode_as_python(value, indent) if text is None else text


def encode_as_python(value: Any, indent: int) -> bytes:
    """The text of ``json.dumps(value, indent=1)`` at a depth of `indent`, even for contents of a damaged journal."""
    try:
        text = _on_one_line(value)
        if "\\u0000" not in text:
            for number, mark in _MARKS:
                text = text.replace(number, mark)
            text = _laid_out(text.encode(), indent).decode()
            for number, mark in _MARKS:
                text = text.replace(mark, number)
            return text.encode()
    except _ERRORS:
        pass
    return json.dumps(_writable(value), indent=1).replace("\n", "\n" + " " * indent).encode()


def _compiled(value: Any, indent: int) -> bytes | None:
    """The text of `value` by compiled code; ``None`` where that would write another one, or none."""
    try:
        text = msgspec.json.encode(value)
        # What is not finite is null now, and what `json` escapes besides control characters is not escaped.
        alike = text.isascii() and b"\x7f" not in text
        if alike and not (b"null" in text and _NOT_FINITE.search(msgspec.msgpack.encode(value))):
            return _laid_out(text, indent)
    except _ERRORS:
        pass  # a value that only Python can write
    return None


def _laid_out(text: bytes, indent: int) -> bytes:
    """A JSON text with a line for each value.

    Raises:
        msgspec.DecodeError: It is no JSON.
    """
    # Lists around it indent it. The n-th opens with a bracket, a line end and n blanks, and closes the other way round
    # with n - 1.
    whole = msgspec.json.format(b"[" * indent + text + b"]" * indent, indent=1)
    before, after = sum(range(3, 3 + indent)), sum(range(2, 2 + indent))
    return whole[before : len(whole) - after]


def _writable(value: Any) -> Any:
    """`value` with a text in the place of what JSON, or Python's json, cannot write."""
    kind = type(value)
    if kind is dict:
        return {key if type(key) is str else str(key): _writable(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_writable(item) for item in value]
    if kind is int:
        try:
            str(value)
        except ValueError:
            # More digits than Python converts; JSON has no hexadecimal.
            return hex(value)
    return value if value is None or kind in (bool, int, float, str) else str(value)


# --- json files


_source_lines: dict[Frame, str] = {}
"""Lines of stack.json as JSON, by their frames. The next step has mostly the same."""
_MOST_SOURCE_LINES = 1 << 14
"""Lines that are kept; a guess: some thousand occur in a program."""


def skeleton(folder: str, header: Header, is_new: bool) -> None:
    """Write the files as they are before the first record; `is_new` is true of a folder in which there are none."""
    files.replace(os.path.join(folder, header.file_name), b"".join(_data(header, ())))
    if header.level != "debug" and header.extra_info:
        for name in (STACK_FILE, CONSTRUCT_FILE):
            files.replace(os.path.join(folder, name), b"{}")
    if not is_new:
        SketchWriter().write(folder)
        update_file.write(folder, ())


def write(folder: str, change: Callable[[Any], None] | None = None) -> Header:
    """Make the files of `folder` from the journal in it.

    Args:
        folder: With the journal.
        change: Called with the fields of every record before they are written.

    Raises:
        DumpFormatError: the journal cannot be read.
        OSError: a file cannot be written.
    """
    with JournalReader(os.path.join(folder, JOURNAL_FILE)) as journal:
        header = _with_present_folder(journal.header, folder)
        _write_data(folder, header, _members(journal, change))
        if header.level != "debug" and header.extra_info:
            _write_calls(folder, journal)
        journal.sketches.write(folder)
        update_file.write(folder, journal.updates, journal.path)
    return header


def _with_present_folder(header: Header, folder: str) -> Header:
    """`header` with the folder's present name: ``proc<PID>`` becomes ``rank<R>`` when the process gets a rank."""
    if header.dump_data_dir is None:
        return header
    above, name = os.path.split(header.dump_data_dir)
    now = os.path.basename(os.path.abspath(folder))
    if not is_without_rank(os.path.basename(above)) or not is_of_rank(now):
        return header
    return msgspec.structs.replace(header, dump_data_dir=os.path.join(os.path.dirname(above), now, name))


def _members(journal: JournalReader, change: Callable[[Any], None] | None) -> Iterator[bytes]:
    """The records as members of "data"; their sketches are taken."""
    encode_numbers, sketches = msgspec.json.encode, journal.sketches
    is_compiled = laid_out is not None and change is None
    rows: Rows = [], [], [], []
    for name, frames in journal.frames():
        # A record with numbers that are not finite is spelt as Python does.
        text = laid_out(name, frames, rows, encode_numbers, _numbers_as_python) if is_compiled else None
        if text is None or len(rows[0]) >= AT_ONCE:
            sketches.take_rows(*rows)
            rows = [], [], [], []
        if text is None:
            fields = journal.fields(name, frames)
            if change is not None:
                change(fields)
            text = b"\n  " + quote(name).encode() + b": " + encode(fields, 2)
        yield text
    sketches.take_rows(*rows)


def _numbers_as_python(numbers: list[float]) -> bytes:
    return _on_one_line(numbers).encode()


def _write_data(folder: str, header: Header, members: Iterable[bytes]) -> None:
    with files.replacing(os.path.join(folder, header.file_name)) as stream:
        stream.writelines(_data(header, members))


def _data(header: Header, members: Iterable[bytes]) -> Iterator[bytes]:
    """The parts of dump.json, or of debug.json."""
    lines = [f' "{key}": {json.dumps(getattr(header, key))}' for key in ("task", "level", "framework", "dump_data_dir")]
    yield ("{\n" + ",\n".join(lines) + ',\n "data": ').encode()
    before = b"{"
    for member in members:
        yield before
        yield member
        before = b","
    yield b"{}\n}" if before == b"{" else b"\n }\n}"


class _Calls(NamedTuple):
    """The calls of a step and their stacks, and what was written of them."""

    level: str
    nodes: list[tuple[str, Node]]
    stacks: object
    stack_text: bytes
    tree_text: bytes


_MOST_KEPT = 1 << 20
"""Bytes of stack.json that are kept for the next step; a guess: the calls of a large model."""
_last_calls: _Calls | None = None
"""The calls and stacks of the step that was written last: the next step has mostly the same."""


def _write_calls(folder: str, journal: JournalReader) -> None:
    """Write stack.json and construct.json."""
    global _last_calls
    last, level, nodes = _last_calls, journal.header.level, list(journal.nodes.items())
    stack_path, tree_path = (os.path.join(folder, name) for name in (STACK_FILE, CONSTRUCT_FILE))
    if last is not None and (last.level, last.nodes, last.stacks) == (level, nodes, journal.stacks):
        files.replace(stack_path, last.stack_text)
        files.replace(tree_path, last.tree_text)
        return
    _last_calls = None
    if len(_source_lines) > _MOST_SOURCE_LINES:
        _source_lines.clear()
    calls, lines = journal.calls(), _SourceLines()
    kept: list[bytes] = []
    size = 0
    with files.replacing(stack_path) as stream:
        for part in _stack_parts(journal, calls, lines):
            stream.write(part)
            size += len(part)
            if size <= _MOST_KEPT:
                kept.append(part)
    # L1 has no modules to be inside of, and its tree is empty by contract.
    tree_text = encode({name: node.parent for name, node in (calls if level in ("L0", "mix") else ())}, 0)
    files.replace(tree_path, tree_text)
    # A file of source code that is missing may exist the next time.
    if size <= _MOST_KEPT and all(lines.values()):
        _last_calls = _Calls(level, nodes, journal.stacks, b"".join(kept), tree_text)


def _stack_parts(
    journal: JournalReader, calls: Sequence[tuple[str, Node]], lines: Mapping[Frame, str]
) -> Iterator[bytes]:
    """The parts of stack.json."""
    # Two instructions of one line have different stacks with the same text, and are one entry.
    groups: dict[tuple[str, ...], list[str]] = {}
    named: dict[int, list[str]] = {}
    for name, node in calls:
        number = node.stack
        names = named.get(number)
        if names is None:
            if number < 0:
                continue
            text = tuple(line for line in map(lines.__getitem__, journal.stack(number) or ()) if line)
            names = named[number] = groups.setdefault(text, [])
        names.append(quote(name))
    yield b"{"
    for i, (text, names) in enumerate(groups.items()):
        yield f'{"," if i else ""}\n "{i}": [\n  {_rows(names)},\n  {_rows(text)}\n ]'.encode()
    yield b"\n}" if groups else b"}"


def _rows(texts: Sequence[str]) -> str:
    """A list of what is JSON already, two levels deep."""
    return "[\n   " + ",\n   ".join(texts) + "\n  ]" if texts else "[]"


class _SourceLines(dict[Frame, str]):
    """The line of a frame as JSON, or an empty text when its source cannot be found."""

    def __missing__(self, frame: Frame) -> str:
        text = _source_lines.get(frame, "")
        if not text:
            line = frame_text(frame)
            if line:
                # A missing file may exist the next time.
                text = _source_lines[frame] = quote(line)
        self[frame] = text
        return text
