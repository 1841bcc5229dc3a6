"""The files of a dump made from its journal: encoding, writing, and recovery of runs that died.

Each is written aside and renamed. Indented by one blank; NaN and the infinities as Python's json writes them, other
numbers with the fewest digits that give the same value back.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable

import msgspec
import numpy as np

from probe.common import files
from probe.common.callstack import Frame
from probe.common.dump import update_file
from probe.common.dump.journal import NOT_FINITE, Header, JournalReader, is_journal
from probe.common.dump.layout import (
    CONSTRUCT_FILE,
    JOURNAL_FILE,
    MADE_FILES,
    RECORD_FILES,
    STACK_FILE,
    TENSOR_FOLDER,
    is_of_rank,
    is_without_rank,
)
from probe.common.dump.reading.dump import read
from probe.common.dump.reading.runs import check_exists
from probe.common.dump.sketch_writer import SketchWriter
from probe.common.dump.stack_text import frame_text
from probe.common.errors import DumpFormatError, FileCheckException
from probe.common.files import in_use, remove_left

quote = json.encoder.encode_basestring_ascii

_on_one_line = json.JSONEncoder(separators=(",", ":")).encode
_MARKS = (("-Infinity", r'"\u0000-"'), ("Infinity", r'"\u0000+"'), ("NaN", r'"\u0000N"'))
"""The text that stands for a number that JSON lacks. Inside a text the quotes end it early, which is no JSON."""
_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


def encode(value: Any, indent: int) -> bytes:
    """The text of `value` at a depth of `indent`; its numbers have the fewest digits that give the same value back.

    A number that is small or large then has its exponent as 1e-7, where Python writes 1e-07.
    """
    text = _compiled(value, indent)
    return encode_as_python(value, indent) if text is None else text


def encode_members(values: dict[str, Any], indent: int, odd: Sequence[str] = ()) -> bytes:
    """The text of `encode` between the braces of a dict that is not empty; but for `odd`, all numbers are finite."""
    margin = b"\n" + b" " * (indent + 1)
    text = _compiled({**values, **dict.fromkeys(odd)}, indent, finite=True)
    if text is None:
        # One of them keeps the others from being encoded together.
        return b",".join(
            margin + quote(name).encode() + b": " + encode(value, indent + 1) for name, value in values.items()
        )
    text = text[1 : -len(b"\n}") - indent]
    for name in odd:
        # Nothing else begins a line like this: what is inside a value stands further to the right.
        before = margin + quote(name).encode() + b": "
        text = text.replace(before + b"null", before + encode(values[name], indent + 1), 1)
    return text


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


def _compiled(value: Any, indent: int, finite: bool = False) -> bytes | None:
    """The text of `value` by compiled code; ``None`` where that would write another one, or none.

    `finite`: all numbers in it are known to be.
    """
    try:
        text = msgspec.json.encode(value)
        # What is not finite is null now, and what `json` escapes besides control characters is not escaped.
        alike = text.isascii() and b"\x7f" not in text
        if alike and (finite or not (b"null" in text and NOT_FINITE.search(msgspec.msgpack.encode(value)))):
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


_AT_ONCE = 32
"""Records that are encoded together, which takes half the time of one by one."""
_Record = tuple[str, Any, bool]
"""Name, fields, and whether all numbers in them are known to be finite."""

_source_lines: dict[Frame, str] = {}
"""Lines of stack.json as JSON, by their frames. The next step has mostly the same."""
_MOST_SOURCE_LINES = 1 << 14
"""Lines that are kept; a guess: some thousand occur in a program."""


def skeleton(folder: str, header: Header) -> None:
    """Write the files as they are before the first record."""
    _write_data(folder, header, ())
    if header.level != "debug" and header.extra_info:
        for name in (STACK_FILE, CONSTRUCT_FILE):
            with files.replacing(os.path.join(folder, name)) as stream:
                stream.write(b"{}")
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
        records = journal.records_checked()
        _write_data(folder, header, records if change is None else _changed(records, change))
        if header.level != "debug" and header.extra_info:
            _write_stacks(folder, journal)
            _write_tree(folder, journal)
        journal.sketches.write(folder)
        update_file.write(folder, journal.updates)
    return header


def _changed(records: Iterable[_Record], change: Callable[[Any], None]) -> Iterator[_Record]:
    for name, fields, _ in records:
        change(fields)
        # The present contents are unknown.
        yield name, fields, False


def _with_present_folder(header: Header, folder: str) -> Header:
    """`header` with the folder's present name: ``proc<PID>`` becomes ``rank<R>`` when the process gets a rank."""
    if header.dump_data_dir is None:
        return header
    above, name = os.path.split(header.dump_data_dir)
    now = os.path.basename(os.path.abspath(folder))
    if not is_without_rank(os.path.basename(above)) or not is_of_rank(now):
        return header
    return dataclasses.replace(header, dump_data_dir=os.path.join(os.path.dirname(above), now, name))


def _write_data(folder: str, header: Header, records: Iterable[_Record]) -> None:
    with files.replacing(os.path.join(folder, header.file_name)) as stream:
        _put_data(stream, header, records)


def _put_data(stream: BinaryIO, header: Header, records: Iterable[_Record]) -> None:
    lines = [f' "{key}": {json.dumps(getattr(header, key))}' for key in ("task", "level", "framework", "dump_data_dir")]
    stream.write(("{\n" + ",\n".join(lines) + ',\n "data": ').encode())
    before = b"{"
    for several, odd in _together(records):
        stream.write(before)
        stream.write(encode_members(several, 1, odd))
        before = b","
    stream.write(b"{}\n}" if before == b"{" else b"\n }\n}")


def _together(records: Iterable[_Record]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Some records at a time, and the names of those with numbers that may not be finite."""
    several: dict[str, Any] = {}
    odd: list[str] = []
    for name, fields, finite in records:
        several[name] = fields
        if not finite:
            odd.append(name)
        if len(several) == _AT_ONCE:
            yield several, odd
            several, odd = {}, []
    if several:
        yield several, odd


def _write_tree(folder: str, journal: JournalReader) -> None:
    # L1 has no modules to be inside of, and its tree is empty by contract.
    calls = journal.calls() if journal.header.level in ("L0", "mix") else []
    with files.replacing(os.path.join(folder, CONSTRUCT_FILE)) as stream:
        stream.write(encode({name: node.parent for name, node in calls}, 0))


def _write_stacks(folder: str, journal: JournalReader) -> None:
    # Two instructions of one line have different stacks with the same text, and are one entry.
    groups: dict[tuple[str, ...], list[str]] = {}
    named: dict[int, list[str]] = {}
    lines = _SourceLines()
    if len(_source_lines) > _MOST_SOURCE_LINES:
        _source_lines.clear()
    for name, node in journal.calls():
        number = node.stack
        names = named.get(number)
        if names is None:
            if number < 0:
                continue
            text = tuple(line for line in map(lines.__getitem__, journal.stack(number) or ()) if line)
            names = named[number] = groups.setdefault(text, [])
        names.append(quote(name))
    with files.replacing(os.path.join(folder, STACK_FILE)) as stream:
        stream.write(b"{")
        for i, (text, names) in enumerate(groups.items()):
            stream.write(f'{"," if i else ""}\n "{i}": [\n  {_rows(names)},\n  {_rows(text)}\n ]'.encode())
        stream.write(b"\n}" if groups else b"}")


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


# --- recovery


@dataclass(frozen=True)
class RecoveredFolder:
    """The result for one journal, or for files that have none and cannot be read."""

    folder: str
    file_name: str
    records: int
    torn_at: int | None
    """The byte at which the records end that can be read, if something follows that cannot."""
    problem: str | None = None
    """The reason why the files could not be made, if so: a sentence that names the folder or the file."""
    unwritten: int = 0
    """Tensors that were still to be written (``async_dump``): their entries name no file."""
    lost: int = 0
    """The bytes from a damaged place to the end of the journal; 0 where the process died in the last record."""


def recover(directory: str, remove: bool = False) -> Iterator[RecoveredFolder]:
    """Make the files of every folder below `directory` that holds a journal. Doing so again changes nothing.

    A journal that cannot be read does not keep the others from being used. One that a living process writes is left to
    it: files made from the journal could replace those that it makes in the meantime, of more records. Of files that
    cannot be read and have no journal it is said that nothing can make them again.

    Raises:
        FileCheckException: `directory` does not exist, is a link, or holds neither a journal nor a dump.
    """
    check_exists(directory)
    if not os.path.isdir(directory):
        raise FileCheckException(f"{directory} is not a folder; give that of a process, a step or a run.")
    if os.path.islink(os.path.normpath(directory)):
        raise FileCheckException(f"{directory} is a symbolic link; give the folder it points to instead.")
    folders = _with_journal(directory)
    if not folders and not set_aside(directory) and not _holds(directory, *RECORD_FILES):
        raise FileCheckException(f"{directory} holds no {JOURNAL_FILE}, and no dump either.")
    for folder in folders:
        try:
            yield _recover_one(folder, remove)
        except (DumpFormatError, OSError) as error:
            yield RecoveredFolder(folder, "", 0, None, _problem(folder, error))
    for folder, name in _without_journal(directory):
        try:
            read(os.path.join(folder, name))
        except (DumpFormatError, FileCheckException, OSError) as error:
            problem = f"{_problem(folder, error)} There is no journal to make it from."
            yield RecoveredFolder(folder, name, 0, None, problem)


def _problem(folder: str, error: Exception) -> str:
    """The error as a sentence that names the folder; most errors of files name their file themselves."""
    text = str(error)
    return text if folder in text else f"{folder}: {text}"


def set_aside(directory: str) -> list[str]:
    """The journals below `directory` that a new run into the folder of a dead one kept under another name."""
    numbered = re.compile(re.escape(JOURNAL_FILE) + r"\.([0-9]+)").fullmatch
    found = [
        (folder, int(match[1]), os.path.join(folder, match[0]))
        for folder, _, names in os.walk(directory)
        for match in map(numbered, names)
        if match is not None
    ]
    return [path for _, _, path in sorted(found) if is_journal(path)]


def _recover_one(folder: str, remove: bool) -> RecoveredFolder:
    journal = os.path.join(folder, JOURNAL_FILE)
    if in_use(journal):
        return RecoveredFolder(
            folder, "", 0, None, f"{folder}: a process is still collecting here; its files come when it ends."
        )
    files = _TensorFiles(os.path.join(folder, TENSOR_FOLDER))
    header = write(folder, files.forget_unwritten)
    with JournalReader(journal) as reader:
        found = RecoveredFolder(
            folder,
            header.file_name,
            reader.records_count,
            reader.torn_at,
            unwritten=files.unwritten,
            lost=reader.lost,
        )
    remove_left(folder, MADE_FILES)
    if remove:
        os.unlink(journal)
    return found


class _TensorFiles:
    """The tensor files of a run that died; its journal can name some that it had no time to write."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.unwritten = 0

    def forget_unwritten(self, value: Any) -> None:
        """Take the names of files that are not there, or not whole, out of the entries in `value`."""
        ahead = [value]
        while ahead:
            part = ahead.pop()
            if isinstance(part, list):
                ahead += part
            elif isinstance(part, dict):
                name = part.get("data_name")
                if isinstance(name, str) and not self._whole(name):
                    del part["data_name"]
                    self.unwritten += 1
                ahead += part.values()

    def _whole(self, name: str) -> bool:
        if os.path.basename(name) != name:
            return False  # no name that the tool gives
        path = os.path.join(self._folder, name)
        if not name.endswith(".npy"):
            # The end of a zip file is written last.
            return zipfile.is_zipfile(path)
        try:
            np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
        return True


def _with_journal(directory: str) -> list[str]:
    return sorted(folder for folder, _, names in os.walk(directory) if JOURNAL_FILE in names)


def _without_journal(directory: str) -> list[tuple[str, str]]:
    """The record files in folders without a journal: ``(folder, file name)``."""
    return sorted(
        (folder, name)
        for folder, _, names in os.walk(directory)
        if JOURNAL_FILE not in names
        for name in RECORD_FILES
        if name in names
    )


def _holds(directory: str, *wanted: str) -> bool:
    """True if a file of one of these names is there or below."""
    return any(name in names for _, _, names in os.walk(directory) for name in wanted)
