"""sketch.npz: what a run knows of each tensor beyond its entry in dump.json.

An archive with two members, which ``numpy.load`` opens without pickles:

    sketch      float32, a row of 64 sums for each tensor; a row of NaN for one without a sketch
    index.json  the text of an object:
                "version" of the sketches,
                "items" the names of the tensors, in the order of the rows,
                "made_by" for each of them the row of the item that returned it, its own row if it is data, a text such
                as ``parameter:layer1.weight``, or null where the maker is not known,
                "views" the rows of tensors that are a view of what "made_by" says,
                "excluded" for each tensor of which the sketch leaves elements out, by the number of its row:
                the number of such elements and eight signed sums that tell which
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import shutil
import struct
import tempfile
import zipfile
from array import array
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Union

import msgspec

from probe.common import files
from probe.common.dump import naming
from probe.common.dump.layout import SKETCH_FILE
from probe.common.errors import DumpFormatError

if TYPE_CHECKING:
    # Statistics and checksums are read without numpy.
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from probe.common.numerics.sketch import Sketch

SKETCH, MAKER, SERIAL = "sketch", "from", "made"
"""The keys of an entry in a journal: the packed sketch, the maker, and the number by which makers of others name it.

dump.json has none of them. The maker is a text, or the number of another entry, which is negative for a view of that
tensor. The maker of data is the number of the entry itself.
"""
DATA, VIEW = "data:", "view:"
"""The beginnings of a maker's text: of what no recorded call made, and of a view that no recorded call made."""

LANES = 64
ROW = 4 * LANES
"""Bytes; see `probe.common.numerics.sketch.Sketch.packed`."""
_LOCAL_HEADER, _LENGTHS_AT = 30, 26
"""The bytes before the name of a member in a zip archive, and the place of the lengths of the name and what follows."""
_EXCLUDED = struct.Struct("<9f")
"""The number of excluded elements and eight marks, which may follow a row."""
_ARRAY, _INDEX = "sketch.npy", "index.json"
DAMAGED = (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""The errors that reading an archive raises where it is damaged."""
NO_SKETCH = b"\0\0\xc0\x7f" * LANES
"""A row of NaN."""
_PARTS = {"input_args": "input", "input_kwargs": "input"}
"""The words for the fields of a record in the names of items, where they are others."""
_DEEPEST = 400
_LONGEST_REASON = 200
_IN_MEMORY = 8 << 20
"""Bytes of rows, and of names, beyond which they wait in a file until all are known."""
_AT_ONCE = 1024
"""Rows that are put to those that wait at once."""
_NEARBY = 8
"""Rows that are read for each one that is wanted, at most, so that many are read at once. A guess."""
_UNKNOWN, _TEXT = -1, -2
_MakerRow = Union[int, str, None]


class SketchWriter:
    """Collects the sketches and the makers of tensors from the records of a journal, and writes the file."""

    def __init__(self) -> None:
        self._count = 0
        self._latest: list[bytes] = []
        """Rows, and their names, that are not among those that wait yet."""
        self._latest_names: list[str] = []
        self._rows: Any = None
        """The waiting rows: files in memory, or on the disk, from the first row on."""
        self._names: Any = None
        self._makers = array("q")
        """For each row the number of its maker, `_UNKNOWN`, or `_TEXT` less the index of a text."""
        self._views: list[int] = []
        self._hashes = array("q")
        """The hash of the packed sketch of each row; 0 without one."""
        self._numbered: dict[int, int] = {}
        """The rows of entries, by the numbers that makers have."""
        self._texts: dict[str, int] = {}
        self._excluded: dict[int, tuple[float, ...]] = {}

    # --- from a journal

    def take(self, name: str, fields: Any) -> None:
        """Move sketches and makers of the record `name` out of its fields."""
        if type(fields) is not dict:
            self._take(name, fields, 0)
        elif naming.is_gradients(name):
            for parameter, value in fields.items():
                # The one gradient of a parameter stands in a list of its own.
                self._take_gradient(f"{name}.{parameter}", value)
        elif type(fields.get("type")) is str:
            self._take(name, fields, 0)  # a value that the program saved
        else:
            for key, value in fields.items():
                if value and (type(value) is list or type(value) is dict):
                    part = f"{name}.{_PARTS.get(key, key)}"
                    if type(value) is dict and naming.is_gradients(key):
                        for parameter, gradient in value.items():
                            self._take_gradient(f"{part}.{parameter}", gradient)
                    else:
                        self._take(part, value, 0)

    def _take_gradient(self, name: str, value: Any) -> None:
        for entry in value if type(value) is list else (value,):
            self._take(name, entry, 0)

    def _take(self, name: str, value: Any, depth: int) -> None:
        if type(value) is dict:
            if type(value.get("type")) is str:
                nested = value.get("tensor")
                self._add(name, nested if type(nested) is dict else value)
                return
            children: Any = value.items()
        elif type(value) is list:
            children = enumerate(value)
        else:
            return
        for key, child in children:
            # Nearly all are tensors.
            if type(child) is dict and type(child.get(SKETCH)) is bytes:
                self._add(f"{name}.{key}", child)
            elif child and depth < _DEEPEST:
                self._take(f"{name}.{key}", child, depth + 1)

    def _add(self, name: str, entry: dict[str, Any]) -> None:
        sketch, maker, serial = entry.pop(SKETCH, None), entry.pop(MAKER, None), entry.pop(SERIAL, None)
        if sketch is None and maker is None:
            return
        row = self._count
        self._count = row + 1
        self._latest_names.append(name)
        self._hashes.append(hash(sketch) if type(sketch) is bytes else 0)
        if type(sketch) is not bytes:
            sketch = NO_SKETCH
        elif len(sketch) != ROW:
            if len(sketch) == ROW + _EXCLUDED.size:
                self._excluded[row] = _EXCLUDED.unpack_from(sketch, ROW)
            sketch = sketch[:ROW] if len(sketch) > ROW else NO_SKETCH
        self._latest.append(sketch)
        if len(self._latest) == _AT_ONCE:
            self._settle()
        if type(serial) is int:
            self._numbered[serial] = row
        if type(maker) is int:
            if maker < 0:
                self._views.append(row)
            self._makers.append(abs(maker))
        elif type(maker) is str:
            text = maker
            if text.startswith(VIEW):
                self._views.append(row)
                text = text[len(VIEW) :]
            self._makers.append(_TEXT - self._texts.setdefault(text, len(self._texts)))
        else:
            self._makers.append(_UNKNOWN)

    def _settle(self) -> None:
        """Let the latest rows wait with the others."""
        if self._latest:
            if self._rows is None:
                waiting = (tempfile.SpooledTemporaryFile(_IN_MEMORY) for _ in range(2))  # noqa: SIM115 (see `close`)
                self._rows, self._names = waiting
            self._rows.write(b"".join(self._latest))
            self._names.write(msgspec.json.encode(self._latest_names)[1:-1] + b",")
        self._latest, self._latest_names = [], []

    def close(self) -> None:
        """Give back what the rows wait in."""
        for file in (self._rows, self._names):
            if file is not None:
                file.close()

    # --- the file

    def write(self, folder: str) -> None:
        """Write the file into `folder`; if there was no tensor, remove an earlier one."""
        path = os.path.join(folder, SKETCH_FILE)
        if self._count:
            with files.replacing(path) as stream:
                self.write_to(stream)
        else:
            # A folder of this name is no earlier file, and no reader takes it for one.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(path)

    def write_to(self, stream: BinaryIO) -> None:
        """Write the archive."""
        from probe.common.numerics.sketch import VERSION

        rest = {"made_by": self._made_by(), "views": self._views, "excluded": self._excluded}
        # What numpy's own writer takes for two arrays, this takes for the whole file several times over.
        with zipfile.ZipFile(stream, "w") as archive:
            if self._rows is None:
                # None waits, so that each member is written at once.
                index = {"version": VERSION, "items": self._latest_names, **rest}
                archive.writestr(_ARRAY, array_header(self._count) + b"".join(self._latest))
                archive.writestr(_INDEX, msgspec.json.encode(index))
                return
            self._settle()
            with archive.open(_ARRAY, "w", force_zip64=True) as member:
                member.write(array_header(self._count))
                self._rows.seek(0)
                shutil.copyfileobj(self._rows, member, _IN_MEMORY)
            with archive.open(_INDEX, "w", force_zip64=True) as member:
                member.write(f'{{"version":{VERSION},"items":['.encode())
                shutil.copyfileobj(_WithoutLast(self._names), member, _IN_MEMORY)
                member.write(b"]," + msgspec.json.encode(rest)[1:])

    def _made_by(self) -> list[_MakerRow]:
        texts = list(self._texts)
        numbered, hashes, views = self._numbered, self._hashes, frozenset(self._views)
        found: list[_MakerRow] = []
        for row, number in enumerate(self._makers):
            if number < 0:
                found.append(None if number == _UNKNOWN else texts[_TEXT - number])
                continue
            maker = numbered.get(number)
            # Nothing counts what is written through `data`, numpy or a foreign kernel: the values then are others.
            is_same = maker is None or row in views or hashes[row] == hashes[maker]
            found.append(maker if is_same else None)
        return found


class _WithoutLast:
    """Reads a file but for its last byte."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = max(0, stream.seek(0, os.SEEK_END) - 1)
        stream.seek(0)

    def read(self, size: int = -1, /) -> bytes:
        found = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        return found


def array_header(rows: int) -> bytes:
    """The beginning of an .npy file of version 1.0 with `rows` sketches."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {LANES}), }}"
    padded = text + " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode()


class _Index(msgspec.Struct):
    version: int
    items: list[str]
    made_by: list[_MakerRow]
    views: list[int] = []
    excluded: dict[int, tuple[float, ...]] = {}


class _Rows:
    """The sketches of a dump. They stay in their file: of a long dump they are as large as all else that is kept of it.

    Args:
        path: the file.
        start: the place of the first sketch in it, or in `content`.
        count: how many there are.
        content: the bytes, if there is no such file.
    """

    def __init__(self, path: str, start: int, count: int, content: bytes | None = None) -> None:
        self._path, self._start, self.count, self._content = path, start, count, content
        self._part = 0, b""

    def read(self, first: int, count: int) -> bytes:
        """The bytes of some sketches that follow one another.

        Raises:
            DumpFormatError: the file is gone, or shorter than it was.
        """
        begin, size = self._start + first * ROW, count * ROW
        if self._content is not None:
            return self._content[begin : begin + size]
        try:
            with files.open_for_reading(self._path) as stream:
                stream.seek(begin)
                found = stream.read(size)
        except OSError:
            found = b""
        if len(found) != size:
            raise DumpFormatError(f"{self._path} was changed while it was read; collect the dump again.")
        return found

    def one(self, row: int) -> bytes:
        """The bytes of one sketch; the next that is asked for is mostly near it."""
        first, part = self._part
        if not first <= row < first + len(part) // ROW:
            first = row - row % _AT_ONCE
            part = self.read(first, min(_AT_ONCE, self.count - first))
            self._part = first, part
        return part[(row - first) * ROW : (row - first + 1) * ROW]

    def at(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The sketches of several rows, a line of 64 float32 for each."""
        import numpy as np

        if not len(rows):
            return np.empty((0, LANES), np.float32)
        first, last = int(rows.min()), int(rows.max())
        if last - first < _NEARBY * len(rows):
            every = np.frombuffer(self.read(first, last - first + 1), "<f4").reshape(-1, LANES)
            return np.asarray(every[rows - first])
        return np.frombuffer(b"".join(map(self.one, rows.tolist())), "<f4").reshape(-1, LANES)


class SketchTable:
    """The sketch and the maker of each tensor of a dump, by the names of items."""

    def __init__(self, index: _Index, rows: _Rows) -> None:
        self._index = index
        self._views = frozenset(index.views)
        self._sketches = rows

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self._index.items)}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def sketch(self, name: str) -> Sketch | None:
        """The sketch of the item `name`; ``None`` where there is none."""
        row = self._rows.get(name)
        if row is None:
            return None
        import numpy as np

        from probe.common.numerics.sketch import Sketch

        sums = np.frombuffer(self._sketches.one(row), "<f4")
        if sums[0] != sums[0]:
            return None
        excluded = self._index.excluded.get(row)
        return Sketch(sums) if excluded is None else Sketch(sums, int(excluded[0]), np.array(excluded[1:], "<f4"))

    def names(self) -> Iterable[str]:
        """The names of the items, in the order of the run."""
        return self._index.items

    def first_of(self, kind: str) -> dict[str, str]:
        """The first item that is each parameter, or what else `kind` says, by the name behind it.

        Args:
            kind: the beginning of a maker's text, such as ``parameter:``.
        """
        found: dict[str, str] = {}
        for row, (item, maker) in enumerate(zip(self._index.items, self._index.made_by)):
            if type(maker) is str and maker.startswith(kind) and row not in self._views:
                found.setdefault(maker[len(kind) :], item)
        return found

    def sums(self, names: Iterable[str]) -> NDArray[Any]:
        """The sketches of several items, a row of 64 float32 for each; of NaN where there is none."""
        import numpy as np

        rows = np.fromiter((self._rows.get(name, -1) for name in names), np.intp)
        found = np.full((len(rows), LANES), np.nan, np.float32)
        found[rows >= 0] = self._sketches.at(rows[rows >= 0])
        return found

    def made_by(self, name: str) -> str | None:
        """The item that returned the tensor of the item `name`; ``None`` where it is not known.

        Example:
            ``Functional.relu.0.forward.output.0``, ``parameter:layer1.weight``, ``data:Module.Net.forward.0.input.0``;
            ``view:`` before one of these for a view that no recorded call made.
        """
        row = self._rows.get(name)
        maker = None if row is None else self._index.made_by[row]
        if row is None or maker is None:
            return None
        if isinstance(maker, int):
            text = self._index.items[maker]
            if self._index.made_by[maker] == maker:
                text = DATA + text
        else:
            text = maker
        return VIEW + text if row in self._views else text

    def share(self, other: SketchTable | UnreadTable) -> bool:
        """True if `other` has the same items and makers, which are kept once then."""
        if isinstance(other, UnreadTable):
            other = other._read()
        mine, theirs = self._index, other._index
        if mine.items != theirs.items or mine.made_by != theirs.made_by or self._views != other._views:
            return False
        theirs.items, theirs.made_by, other._rows = mine.items, mine.made_by, self._rows
        return True

    def is_same(self, other: SketchTable | UnreadTable) -> bool:
        """True if `other` has the same items, sketches and makers."""
        if isinstance(other, UnreadTable):
            other = other._read()
        if self._index != other._index:
            return False
        mine, theirs = self._sketches, other._sketches
        return all(
            mine.read(first, number) == theirs.read(first, number)
            for first in range(0, mine.count, _AT_ONCE)
            for number in (min(_AT_ONCE, mine.count - first),)
        )

    def has_same(self, name: str, other: SketchTable | UnreadTable) -> bool:
        """True if the item `name` has the same sketch and the same maker in `other`, or is in neither.

        Statistics of a short type may be the same where the tensors are not.
        """
        if isinstance(other, UnreadTable):
            other = other._read()
        row, another = self._rows.get(name), other._rows.get(name)
        if row is None or another is None:
            return row is another
        return (
            self._sketches.one(row) == other._sketches.one(another)
            and self._index.excluded.get(row) == other._index.excluded.get(another)
            and self.made_by(name) == other.made_by(name)
        )


class UnreadTable:
    """The `SketchTable` of the dump in a folder, which is read when something is asked of it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._table: SketchTable | None = None

    def _read(self) -> SketchTable:
        if self._table is None:
            self._table = read(self._folder) or SketchTable(_Index(0, [], []), _Rows("", 0, 0))
        return self._table

    def sketch(self, name: str) -> Sketch | None:
        """The sketch of the item `name`; ``None`` where there is none."""
        return self._read().sketch(name)

    def names(self) -> Iterable[str]:
        """The names of the items, as `SketchTable.names` gives them."""
        return self._read().names()

    def first_of(self, kind: str) -> dict[str, str]:
        """The first item of each parameter, as `SketchTable.first_of` gives it."""
        return self._read().first_of(kind)

    def sums(self, names: Iterable[str]) -> NDArray[Any]:
        """The sketches of several items, as `SketchTable.sums` gives them."""
        return self._read().sums(names)

    def made_by(self, name: str) -> str | None:
        """The maker of the item `name`, as `SketchTable.made_by` gives it."""
        return self._read().made_by(name)

    def share(self, other: SketchTable | UnreadTable) -> bool:
        """True if `other` has the same items and makers, as `SketchTable.share` tells it."""
        return self._read().share(other)

    def is_same(self, other: SketchTable | UnreadTable) -> bool:
        """True if `other` has the same content."""
        if self._table is None and isinstance(other, UnreadTable) and other._table is None:
            return _have_same_members(self._folder, other._folder)
        return self._read().is_same(other)

    def has_same(self, name: str, other: SketchTable | UnreadTable) -> bool:
        """True if the item `name` is the same in `other`, as `SketchTable.has_same` tells it."""
        return self._read().has_same(name, other)


def read(folder: str) -> SketchTable | None:
    """The table of the dump in `folder`; ``None`` where it has no such file, or one of another version.

    No more memory is taken than a few times the bytes of the file.

    Raises:
        DumpFormatError: the file is damaged; the message names it.
    """
    path = os.path.join(folder, SKETCH_FILE)
    if not os.path.isfile(path):
        return None
    with files.open_for_reading(path) as stream:
        return read_from(stream, path)


def _have_same_members(folder: str, other: str) -> bool:
    """True if the files of two dumps hold the same; nothing of them is kept."""
    paths = [os.path.join(each, SKETCH_FILE) for each in (folder, other)]
    try:
        with contextlib.ExitStack() as stack:
            mine, theirs = (stack.enter_context(zipfile.ZipFile(path)) for path in paths)
            for name in (_INDEX, _ARRAY):
                entries = mine.getinfo(name), theirs.getinfo(name)
                kinds = {(entry.file_size, entry.CRC, entry.compress_type) for entry in entries}
                if kinds != {(entries[0].file_size, entries[0].CRC, zipfile.ZIP_STORED)}:
                    return False
                members = [stack.enter_context(side.open(name)) for side in (mine, theirs)]
                part = b" "
                while part:
                    part = members[0].read(_IN_MEMORY // 8)
                    if part != members[1].read(_IN_MEMORY // 8):
                        return False
    except DAMAGED:
        return False  # Reading it says what is wrong.
    return True


def of_writer(writer: SketchWriter, path: str) -> SketchTable | None:
    """The table of what was collected from the journal `path`; ``None`` if there was nothing."""
    stream = io.BytesIO()
    writer.write_to(stream)
    found = read_from(stream, path, in_memory=True)
    return found if found is not None and len(found) else None


def read_from(stream: BinaryIO, path: str, in_memory: bool = False) -> SketchTable | None:
    """The table in an open file that is called `path`; for the rest see `read`.

    Args:
        stream: the file.
        path: its name; sketches are read from there when they are asked for.
        in_memory: keep the sketches, because there is no such file.
    """
    from probe.common.numerics.sketch import VERSION

    try:
        with zipfile.ZipFile(stream) as archive:
            index = msgspec.json.decode(read_member(archive, stream, _INDEX), type=_Index)
            if index.version != VERSION:
                return None
            _check(index)
            header = array_header(len(index.items))
            start = _start_of_rows(archive, stream, header, len(index.items) * ROW)
    except (*DAMAGED, msgspec.MsgspecError) as error:
        reason = str(error)[:_LONGEST_REASON]
        raise DumpFormatError(f"{path} is damaged: {reason}. Collect the dump again, or delete this file.") from None
    content = stream.getvalue() if in_memory and isinstance(stream, io.BytesIO) else None
    return SketchTable(index, _Rows(path, start, len(index.items), content))


def _start_of_rows(archive: zipfile.ZipFile, stream: BinaryIO, header: bytes, size: int) -> int:
    """The place of the first sketch in the file; all of them are read once, because the archive has their checksum.

    Raises:
        ValueError: the member is none of so many bytes of sketches.
    """
    entry = archive.getinfo(_ARRAY)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != len(header) + size:
        raise ValueError(f"its rows are not those of {size // ROW} tensors")
    with archive.open(entry) as member:
        if member.read(len(header)) != header:
            raise ValueError(f"its rows are not those of {size // ROW} tensors")
        while member.read(_IN_MEMORY // 8):
            pass
    stream.seek(entry.header_offset + _LENGTHS_AT)
    name, extra = struct.unpack("<HH", stream.read(4))
    return int(entry.header_offset + _LOCAL_HEADER + name + extra) + len(header)


def read_member(archive: zipfile.ZipFile, stream: BinaryIO, name: str) -> bytes:
    """A member of the archive, checked before memory is taken for it."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > stream.seek(0, os.SEEK_END):
        raise ValueError(f"{name} is compressed, or larger than the file")
    return archive.read(entry)


def _check(index: _Index) -> None:
    """Check that the parts of a file belong together.

    Raises:
        ValueError: they do not.
    """
    known = range(len(index.items))
    if len(index.made_by) != len(known) or len(set(index.items)) != len(known):
        raise ValueError(f"{len(index.made_by)} makers of {len(set(index.items))} tensors")
    makers = (maker for maker in index.made_by if isinstance(maker, int))
    if not all(row in known for some in (makers, index.views, index.excluded) for row in some):
        raise ValueError("a row is out of range")
    if not all(len(numbers) == 9 and all(map(math.isfinite, numbers)) for numbers in index.excluded.values()):
        raise ValueError("excluded elements without nine numbers")
