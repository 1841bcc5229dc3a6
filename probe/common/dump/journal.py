"""The journal: records are appended as they arrive, and the files of a dump are made from it.

Byte by byte: the eight bytes ``MSPROBEJ``, then frames. A frame is the length of its body and the CRC-32 of its body,
each an unsigned 32-bit little-endian integer, then the body: a MessagePack array whose first element is the kind.

    [0, {"version": 1, ...}]                                  header, always the first frame
    [1, number, [[file, line, function], ...]]                a call stack; version 1 alone
    [2, name, begun, stack, parent, order, rule, fields]      a record
    [3, name, begun, stack, parent]                           a call that is in the tree but has no record
    [4, [[number, caller, [file, line, function]], ...]]      call stacks: the innermost frame, and the stack below it
    [5, {"optimizer": "AdamW", ...}]                          a step of an optimizer, see `update_file.UpdateFrame`

`begun` counts the beginnings of calls, -1 for what is no call; `stack` is a number or -1; `order` sorts the records.
`caller` is -1 for the outermost frame, and else a smaller number than that of the stack, which stands before it.
`rule` says what happens when the name is already there: 0 the record stays where the first one stood and is replaced,
1 it moves to the new place, 2 its fields are added to the first one. An integer beyond 64 bits travels as extension 1,
its hexadecimal digits.

A process that dies leaves whole frames and at most one torn one at the end; reading stops there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Optional, Union

import msgspec

try:
    from probe.common.dump import _journal_frames
except ImportError:
    _journal_frames = None  # type: ignore[assignment]
from probe.common import files
from probe.common.callstack import CallStacks, Frame, StackTree, without_middle
from probe.common.dump.layout import record_file
from probe.common.dump.naming import OUTSIDE_MODULES
from probe.common.dump.sketch_writer import SketchWriter
from probe.common.errors import DumpFormatError

if TYPE_CHECKING:
    from typing_extensions import Buffer

try:
    from probe.common.dump._records import indexed
except ImportError:  # not built here
    indexed = None  # type: ignore[assignment]

FORMAT_VERSION = 3
"""1: first version. 2: stacks share their frames. 3: steps of optimizers. All are of 2026-11, and are read."""

MAGIC = b"MSPROBEJ"
REPLACE, MOVE, ADD = 0, 1, 2

_HEADER, _STACK, _RECORD, _NODE, _STACKS, _UPDATE = 0, 1, 2, 3, 4, 5
_BIG_INTEGER = 1
"""The code of an integer beyond 64 bits among the extension types of msgpack: a part of the format."""
_MOST_BITS = 1023
"""The largest integer that stays a number: readers refuse what is beyond all formats, so a larger one is a text."""
_FRAME = struct.Struct("<II")
_MAX_FRAME = 1 << 30
"""Bytes of a frame; a guess: a damaged length is larger as a rule."""
_KEPT = 64 << 20
"""Bytes of a journal up to which each record is read from the file once and not twice."""


RecordFrame = tuple[str, int, int, Optional[str], int, int, Any]
"""The arguments of `JournalWriter.record`."""


def _big_integer(code: int, data: memoryview) -> int | str:
    if code != _BIG_INTEGER:
        raise ValueError(f"unknown extension {code}")
    number = int(bytes(data), 16)
    return number if number.bit_length() <= _MOST_BITS else hex(number)


class _HeaderFrame(msgspec.Struct, array_like=True, tag=_HEADER):
    content: dict[str, Any]


class _StackFrame(msgspec.Struct, array_like=True, tag=_STACK):
    number: int
    frames: list[tuple[str, int, str]]


class _StacksFrame(msgspec.Struct, array_like=True, tag=_STACKS):
    frames: list[tuple[int, int, tuple[str, int, str]]]


class _RecordFrame(msgspec.Struct, array_like=True, tag=_RECORD):
    name: str
    begun: int
    stack: int
    parent: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    order: int
    rule: int
    fields: msgspec.Raw


class _NodeFrame(msgspec.Struct, array_like=True, tag=_NODE):
    name: str
    begun: int
    stack: int
    parent: Optional[str]  # noqa: UP045


class _UpdateFrame(msgspec.Struct, array_like=True, tag=_UPDATE):
    content: dict[str, Any]


_decode = msgspec.msgpack.Decoder(ext_hook=_big_integer).decode
_decode_frame = msgspec.msgpack.Decoder(
    Union[_HeaderFrame, _StackFrame, _StacksFrame, _RecordFrame, _NodeFrame, _UpdateFrame]
).decode


class Header(msgspec.Struct, frozen=True):
    """The part of the head that dump.json or debug.json repeats."""

    task: str
    level: str
    framework: str
    dump_data_dir: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    extra_info: bool = True

    @property
    def file_name(self) -> str:
        return record_file(self.level)


class FrameWriterInPython:
    """Appends frames to a file; the compiled `FrameWriter` writes the same bytes.

    Args:
        fd: The file.
        size: Its size.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._size = fd, size
        self.frames = 0
        """Frames written so far."""
        self._ahead: list[bytes] = []
        # Another thread's frame between one that does not fit and its removal would go with it. Not a plain lock: a
        # signal's function can come here in the middle.
        self._one_at_a_time = threading.RLock()

    def append(self, body: list[Any], later: bool) -> bool:
        """Append a frame, or with `later` write it together with the next one; false if `body` must be encoded first.

        Nothing is appended then, and it is always so here.
        """
        return False

    def append_encoded(self, data: bytes, later: bool) -> None:
        """`append` of an encoded body."""
        frame = _FRAME.pack(len(data), zlib.crc32(data)) + data
        with self._one_at_a_time:
            if later:
                self._ahead.append(frame)
                return
            if self._fd < 0:
                raise ValueError("the journal is closed")
            frames = b"".join((*self._ahead, frame))
            try:
                written = os.write(self._fd, frames)
                while written != len(frames):
                    # The disk is full, or the file as large as it may be: writing the rest raises the reason.
                    written += os.write(self._fd, frames[written:])
            except OSError:
                # Half a frame would hide every later one from the reader.
                os.ftruncate(self._fd, self._size)
                raise
            self._size += len(frames)
            self.frames += 1 + len(self._ahead)
            self._ahead.clear()

    def close(self) -> None:
        """Append no more."""
        self._fd = -1


_FrameWriter: Any = FrameWriterInPython if _journal_frames is None else _journal_frames.FrameWriter

RecordWriter: Any = None if _journal_frames is None else _journal_frames.RecordWriter
"""Writes the record of a call without Python between the call and the file; ``None`` where it is not built.

Made with a function that writes any record, and one that is true while records wait; with `write_to` it begins, with
`stop` it leaves all records to that function.
"""


class JournalWriter:
    """Appends frames; each is handed to the system before the call returns, so a killed process loses none."""

    def __init__(self, path: str, header: Header) -> None:
        self._stream: BinaryIO = files.open_for_writing(path, append=True)
        if not files.lock(self._stream):
            self._stream.close()
            raise OSError(errno.EBUSY, "another process is collecting into this folder", path)
        self._encode = msgspec.msgpack.Encoder().encode
        self.path = path
        self.stacks: set[int] = set()
        """The numbers of the stacks that are in the journal, or go there with the next frame."""
        new = not os.fstat(self._stream.fileno()).st_size
        try:
            self._stream.write(MAGIC)
            self.frame_writer = _FrameWriter(self._stream.fileno(), len(MAGIC))
            self._append([_HEADER, {"version": FORMAT_VERSION, **msgspec.structs.asdict(header)}])
        except BaseException:
            # Neither in use nor what a dead run left.
            self._stream.close()
            if new:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise

    @property
    def frames(self) -> int:
        """Frames written so far."""
        return int(self.frame_writer.frames)

    def _append(self, body: list[Any], later: bool = False) -> None:
        try:
            if not self.frame_writer.append(body, later):
                self.frame_writer.append_encoded(self._encoded(body), later)
        except OSError as error:
            error.filename = self.path
            raise

    def _encoded(self, body: list[Any]) -> bytes:
        try:
            return self._encode(body)
        except (OverflowError, UnicodeEncodeError):
            return self._encode(_encodable(body))

    def stack(self, number: int, stacks: CallStacks | StackTree[Frame]) -> None:
        """Write the frames of a stack of `stacks` that are not in the journal yet, with the frame that follows."""
        if number < 0 or number in self.stacks:
            return
        frames = stacks.unknown(number, self.stacks)
        self._append([_STACKS, frames], later=True)
        self.stacks.update(each for each, _, _ in frames)

    def record(self, name: str, begun: int, stack: int, parent: str | None, order: int, rule: int, fields: Any) -> None:
        body = [_RECORD, name, begun, stack, parent, order, rule, fields]
        try:
            # `_append`, written out: this runs for every record.
            if not self.frame_writer.append(body, False):
                self.frame_writer.append_encoded(self._encoded(body), False)
        except OSError as error:
            error.filename = self.path
            raise

    def node(self, name: str, begun: int, stack: int, parent: str | None) -> None:
        self._append([_NODE, name, begun, stack, parent])

    def update(self, content: dict[str, Any]) -> None:
        self._append([_UPDATE, content])

    def close(self) -> None:
        self.frame_writer.close()
        self._stream.close()


def _encodable(value: Any) -> Any:
    """A copy of `value` in which what MessagePack cannot hold has a form that it can."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        # In hexadecimal: Python converts no more than some thousand decimal digits.
        return msgspec.msgpack.Ext(_BIG_INTEGER, f"{value:x}".encode())
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def is_journal(path: str) -> bool:
    """True if the file `path` begins like one."""
    try:
        with files.open_for_reading(path) as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class Node(NamedTuple):
    """A call: when it began, its stack's number or -1, and the name it ran inside."""

    begun: int
    stack: int
    parent: str | None


def _order(item: tuple[str, list[Any]]) -> int:
    order: int = item[1][0]
    return order


def _begun(item: tuple[str, Node]) -> int:
    return item[1].begun


class JournalReader:
    """The content of a journal, records read one at a time.

    Raises:
        DumpFormatError: not a journal, or one of a newer version.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._stream = files.open_for_reading(path, buffering=1 << 17)
        self._size = os.fstat(self._stream.fileno()).st_size
        self.torn_at: int | None = None
        """The end of the readable frames if something follows them: cut off, or damaged."""
        self.lost = 0
        """The bytes from a damaged frame to the end; 0 where the writer died in the middle of the last one."""
        self._stacks: dict[int, list[Frame]] = {}
        """The frames of each stack of a journal of version 1, by its number."""
        self._tree: StackTree[Frame] = StackTree()
        self.nodes: dict[str, Node] = {}
        self.sketches = SketchWriter()
        """The sketches and the makers of the tensors in the records that were read."""
        self.updates: list[dict[str, Any]] = []
        """The steps of optimizers, in order."""
        self._records: dict[str, list[Any]] = {}
        """For each record its order and then its frames: their fields, or their offsets if the journal is large."""
        try:
            start = self._stream.read(len(MAGIC))
            if start != MAGIC and MAGIC.startswith(start):
                raise DumpFormatError(f"{path}: no header; the process died before the first record.")
            if start != MAGIC:
                raise DumpFormatError(f"{path}: not a journal of this tool.")
            self.header = self._index()
        except BaseException:
            self._stream.close()
            raise

    def _bodies(self) -> Iterator[tuple[int, bytes]]:
        offset = len(MAGIC)
        read, unpack, crc32, head_size, size = self._stream.read, _FRAME.unpack, zlib.crc32, _FRAME.size, self._size
        while offset < size:
            head = read(head_size)
            length, crc = unpack(head) if len(head) == head_size else (_MAX_FRAME + 1, 0)
            # A length beyond the file cannot be right and is not allocated.
            data = read(length) if length <= _MAX_FRAME and length <= size else b""
            # No frame is empty: zeros are what a file system leaves of a block that a power cut kept it from writing.
            if not data or len(data) != length or crc32(data) != crc:
                self.torn_at = offset
                if self._holds_something_from(offset + head_size + length):
                    self.lost = size - offset
                return
            yield offset, data
            offset += head_size + length

    def _holds_something_from(self, offset: int) -> bool:
        """True if anything but zeros follows, which a writer that died in a frame before has not written."""
        self._stream.seek(offset)
        return any(chunk.strip(b"\0") for chunk in iter(lambda: self._stream.read(1 << 17), b""))

    def _index(self) -> Header:
        header: Header | None = None
        kept = self._size <= _KEPT
        for offset, data in self._other_frames() if kept else self._bodies():
            try:
                frame = _decode_frame(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise DumpFormatError(f"{self.path}: frame at byte {offset} is not readable: {error}.") from error
            if (type(frame) is _HeaderFrame) != (header is None):
                raise DumpFormatError(f"{self.path}: frame at byte {offset}; allowed: one header, as the first frame.")
            if isinstance(frame, _RecordFrame):
                self._node(frame)
                self._add_record(frame.name, frame.order, frame.rule, frame.fields if kept else offset)
            elif isinstance(frame, _NodeFrame):
                self._node(frame)
            elif isinstance(frame, _UpdateFrame):
                self.updates.append(frame.content)
            elif isinstance(frame, _StackFrame):
                self._stacks[frame.number] = frame.frames
            elif isinstance(frame, _StacksFrame):
                for number, caller, each in frame.frames:
                    # Of a damaged file nothing may go in a circle.
                    self._tree.add(number, caller if caller < number else -1, each)
            else:
                header = self._header(frame.content)
        if header is None:
            raise DumpFormatError(f"{self.path}: no header; the process died before the first record.")
        return header

    def _other_frames(self) -> Iterable[tuple[int, bytes]]:
        """The frames that compiled code has not noted, which notes calls and records of a journal that is whole."""
        if indexed is not None:
            self._stream.seek(0)
            others = indexed(self._stream.read(), len(MAGIC), Node, self.nodes, self._records)
            if others is not None:
                return others
            self._stream.seek(len(MAGIC))
        return self._bodies()

    def _header(self, content: dict[str, Any]) -> Header:
        version = content.pop("version", None)
        if version not in range(1, FORMAT_VERSION + 1):
            known = f"1 to {FORMAT_VERSION}"
            raise DumpFormatError(f"{self.path}: journal version {version!r}; this release reads {known}.")
        try:
            return msgspec.convert(content, Header)
        except msgspec.ValidationError as error:
            raise DumpFormatError(f"{self.path}: the header is not readable: {error}.") from error

    def _node(self, frame: _RecordFrame | _NodeFrame) -> None:
        if frame.begun >= 0 and frame.name not in self.nodes:
            self.nodes[frame.name] = Node(frame.begun, frame.stack, frame.parent)

    def _add_record(self, name: str, order: int, rule: int, frame: msgspec.Raw | int) -> None:
        known = self._records.get(name)
        if known is None or rule == MOVE:
            self._records[name] = [order, frame]
        elif rule == ADD:
            known.append(frame)
        else:
            known[1:] = [frame]

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Names and fields in the order of dump.json."""
        return ((name, self.fields(name, frames)) for name, frames in self.frames())

    def frames(self) -> Iterator[tuple[str, list[Buffer]]]:
        """The names of the records in the order of dump.json, each with its fields as they stand in the journal."""
        for name, (_, *frames) in sorted(self._records.items(), key=_order):
            yield name, frames if self._size <= _KEPT else list(map(self._read, frames))

    def fields(self, name: str, frames: Sequence[Buffer]) -> Any:
        """The fields of a record of `frames`, of which the sketches are taken."""
        fields = self._fields(name, frames[0])
        for frame in frames[1:]:
            more = self._fields(name, frame)
            if isinstance(fields, dict) and isinstance(more, dict):
                fields.update(more)
            else:
                fields = more
        self.sketches.take(name, fields)
        return fields

    def _fields(self, name: str, frame: Buffer) -> Any:
        try:
            return _decode(frame)
        except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
            raise DumpFormatError(f"{self.path}: the record {name} is not readable: {error}.") from error

    def _read(self, offset: int) -> msgspec.Raw:
        self._stream.seek(offset)
        length, _ = _FRAME.unpack(self._stream.read(_FRAME.size))
        frame = _decode_frame(self._stream.read(length))
        assert isinstance(frame, _RecordFrame)
        return frame.fields

    @property
    def stacks(self) -> tuple[StackTree[Frame], dict[int, list[Frame]]]:
        """All stacks, to be compared with those of another journal."""
        return self._tree, self._stacks

    def stack(self, number: int) -> list[Frame] | None:
        """The frames of a stack, innermost first, of a very long one those at its two ends; ``None`` of no stack."""
        if number in self._tree:
            return without_middle(self._tree.ends(number))
        return self._stacks.get(number)

    @property
    def records_count(self) -> int:
        return len(self._records)

    def calls(self) -> list[tuple[str, Node]]:
        """Every call in the order of their beginnings; clipping and the optimizer too, where a call ran inside."""
        empty = OUTSIDE_MODULES & self.nodes.keys()
        if empty:
            empty -= {node.parent for node in self.nodes.values()}
        return sorted((item for item in self.nodes.items() if item[0] not in empty), key=_begun)

    def close(self) -> None:
        self._stream.close()
        self.sketches.close()

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
