"""sketch.npz: what a run knows of each tensor beyond its entry in dump.json.

An archive with two members, which ``numpy.load`` opens without pickles:

    sketch      float32, a row of 64 sums for each tensor; a row of NaN for one without a sketch
    index.json  the text of an object:
                "version" of the sketches,
                "items" the names of the tensors, in the order of the rows,
                "made_by" for each of them the row of the item that returned it, its own row if it is data, a text such
                as ``parameter:layer1.weight``, or null where the maker is not known,
                "views" the rows of tensors that are a view of what "made_by" says,
                "choices" and two further members, see `probe.common.dump.choices`, if a call has chosen,
                "excluded" for each tensor of which the sketch leaves elements out, by the number of its row:
                the number of such elements and eight signed sums that tell which
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import struct
import zipfile
import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Union
from weakref import WeakValueDictionary

import msgspec

from probe.common import files
from probe.common.dump.choices import INDICES_MEMBER, MARGINS_MEMBER, Choices, ChoicesTable, Numbers
from probe.common.dump.layout import SKETCH_FILE
from probe.common.errors import DumpFormatError

if TYPE_CHECKING:
    # Statistics and checksums are read without numpy.
    from collections.abc import Callable, Iterable, Mapping

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
"""Sums of a sketch, as `probe.common.numerics.sketch` defines it."""
ROW = 4 * LANES
"""Bytes; see `probe.common.numerics.sketch.Sketch.packed`."""
_LOCAL_HEADER, _LENGTHS_AT = 30, 26
"""The bytes before the name of a member in a zip archive, and the place of the lengths of the name and what follows."""
ARRAY, INDEX = "sketch.npy", "index.json"
DAMAGED = (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""The errors that reading an archive raises where it is damaged."""
EXCLUDED = struct.Struct("<9f")
"""The number of excluded elements and eight marks, which may follow a row in an entry."""
NO_SKETCH = b"\0\0\xc0\x7f" * LANES
"""A row of NaN."""
_LONGEST_REASON = 200
"""Characters of an error that are shown; a guess."""
IN_MEMORY = 8 << 20
"""Bytes of rows, and of names, beyond which they wait in a file until all are known."""
AT_ONCE = 1024
"""Rows that are read or written at once."""
_NEARBY = 8
"""Rows that are read for each one that is wanted, at most, so that many are read at once. A guess."""
MakerRow = Union[int, str, None]


def array_header(rows: int) -> bytes:
    """The beginning of an .npy file of version 1.0 with `rows` sketches."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {LANES}), }}"
    padded = text + " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode()


def member_of(name: str) -> zipfile.ZipInfo:
    """A member of an archive, without the time of its writing: the same contents are the same bytes."""
    member = zipfile.ZipInfo(name)
    # As Python gives them to members that it names itself: readable where someone unpacks the archive.
    member.external_attr = 0o600 << 16
    return member


_LOCAL, _CENTRAL, _END = struct.Struct("<4s5H3L2H"), struct.Struct("<4s2B5H3L5H2L"), struct.Struct("<4s4H2LH")
"""The headers of a member, its entry in the directory of an archive, and the end of that: APPNOTE 6.3.10, 4.3.7 on."""
_VERSION, _UNIX, _FIRST_DAY = 20, 3, 33
"""The version 2.0 of the format; the system whose permissions a member has; 1980-01-01."""
MOST_STORED = 1 << 30
"""Bytes of an archive that needs no longer numbers, and half of that."""


def stored(members: Mapping[str, bytes]) -> list[bytes]:
    """The parts of an archive of less than `MOST_STORED` bytes, the same that `zipfile` writes of `member_of` each.

    That takes 200 us for two members, and this 70 with their checksums.
    """
    parts: list[bytes] = []
    directory: list[bytes] = []
    offset = 0
    for name, content in members.items():
        info, of_content = member_of(name), (zlib.crc32(content), len(content), len(content))
        file, common = name.encode(), (0, 0, 0, _FIRST_DAY, *of_content, len(name), 0)
        parts += _LOCAL.pack(b"PK\3\4", _VERSION, *common) + file, content
        directory.append(
            _CENTRAL.pack(b"PK\1\2", _VERSION, _UNIX, _VERSION, *common, 0, 0, 0, info.external_attr, offset) + file
        )
        offset += _LOCAL.size + len(file) + len(content)
    size = sum(map(len, directory))
    return [*parts, *directory, _END.pack(b"PK\5\6", 0, 0, len(directory), len(directory), size, offset, 0)]


class _Index(msgspec.Struct, weakref=True):
    version: int
    items: list[str]
    made_by: list[MakerRow]
    views: list[int] = []
    excluded: dict[int, tuple[float, ...]] = {}
    choices: dict[int, Numbers] = {}


class _Rows:
    """The sketches of a dump. They stay in their file: of a long dump they are as large as all else that is kept of it.

    Args:
        path: the file.
        start: the position of the first sketch in it, or in `content`.
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
            first = row - row % AT_ONCE
            part = self.read(first, min(AT_ONCE, self.count - first))
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


class _Content(NamedTuple):
    """The members of a file."""

    columns: _Index
    sketches: _Rows
    choices: ChoicesTable | None = None


class SketchTable:
    """The sketch and the maker of each tensor of a dump, by the names of items; read when something is asked of it.

    Args:
        load: reads the file; called once.
        folder: the folder of the dump, if it has such a file.
    """

    def __init__(self, load: Callable[[], _Content | None], folder: str = "") -> None:
        self._load, self._folder = load, folder

    @cached_property
    def _content(self) -> _Content:
        return self._load() or _Content(_Index(0, [], []), _Rows("", 0, 0))

    @cached_property
    def _index(self) -> _Index:
        return self._content.columns

    @cached_property
    def _views(self) -> frozenset[int]:
        return frozenset(self._index.views)

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

        sums = np.frombuffer(self._content.sketches.one(row), "<f4")
        if sums[0] != sums[0]:
            return None
        excluded = self._index.excluded.get(row)
        return Sketch(sums) if excluded is None else Sketch(sums, int(excluded[0]), np.array(excluded[1:], "<f4"))

    def excluded(self, name: str) -> int:
        """The number of elements that the sketch of the item `name` leaves out; 0 without a sketch."""
        excluded = self._index.excluded
        # Most dumps have none, and are asked for each of their tensors.
        row = self._rows.get(name) if excluded else None
        return int(excluded.get(row, (0,))[0]) if row is not None else 0

    def packed(self, name: str) -> bytes | None:
        """The sketch of the item `name` as a journal has it, NaN if it has none; ``None`` of no such item."""
        row = self._rows.get(name)
        if row is None:
            return None
        excluded = self._index.excluded.get(row)
        sums = self._content.sketches.one(row)
        return sums if excluded is None else sums + EXCLUDED.pack(*excluded)

    def choices(self, name: str) -> Choices | None:
        """The choices of the item `name`, which are indices; ``None`` where there are none."""
        row, table = self._rows.get(name), self._content.choices
        return None if row is None or table is None else table.at(row)

    @property
    def has_choices(self) -> bool:
        """True if the choices of calls were recorded."""
        if self._folder and "_content" not in self.__dict__:
            # Of two equal dumps nothing else is asked of a table, and its index takes long to read.
            return _has_member(self._folder, INDICES_MEMBER)
        return bool(self._index.choices)

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
        found[rows >= 0] = self._content.sketches.at(rows[rows >= 0])
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

    def share(self, other: SketchTable) -> bool:
        """True if `other` has the same items and makers, which are kept once then."""
        mine, theirs = self._index, other._index
        if mine is theirs:
            other._rows = self._rows
            return True
        if mine.items != theirs.items or mine.made_by != theirs.made_by or self._views != other._views:
            return False
        theirs.items, theirs.made_by, other._rows = mine.items, mine.made_by, self._rows
        return True

    def is_same(self, other: SketchTable) -> bool:
        """True if `other` has the same items, sketches and makers."""
        if self._folder and other._folder and "_content" not in self.__dict__ and "_content" not in other.__dict__:
            return _have_same_members(self._folder, other._folder)
        if self._index != other._index:
            return False
        mine, theirs = self._content.sketches, other._content.sketches
        return all(
            mine.read(first, number) == theirs.read(first, number)
            for first in range(0, mine.count, AT_ONCE)
            for number in (min(AT_ONCE, mine.count - first),)
        )

    def has_same(self, name: str, other: SketchTable) -> bool:
        """True if the item `name` has the same sketch and the same maker in `other`, or is in neither.

        Statistics of a short type may be the same where the tensors are not.
        """
        row, another = self._rows.get(name), other._rows.get(name)
        if row is None or another is None:
            return row is another
        return (
            self._content.sketches.one(row) == other._content.sketches.one(another)
            and self._index.excluded.get(row) == other._index.excluded.get(another)
            and self.made_by(name) == other.made_by(name)
        )


def table_in(folder: str) -> SketchTable | None:
    """The table of the dump in `folder`; ``None`` where it has no such file.

    A file of another version is an empty table. No more memory is taken than a few times the bytes of the file. What is
    asked of a table raises `DumpFormatError`, which names the file, if that is damaged.
    """
    path = os.path.join(folder, SKETCH_FILE)

    def load() -> _Content | None:
        with files.open_for_reading(path) as stream:
            return read_from(stream, path)

    return SketchTable(load, folder) if os.path.isfile(path) else None


def _has_member(folder: str, name: str) -> bool:
    """True if the file of a dump has a member, or is damaged: reading it says what is wrong."""
    try:
        with zipfile.ZipFile(os.path.join(folder, SKETCH_FILE)) as archive:
            return name in archive.namelist()
    except DAMAGED:
        return True


def _have_same_members(folder: str, other: str) -> bool:
    """True if the files of two dumps hold the same; nothing of them is kept."""
    paths = [os.path.join(each, SKETCH_FILE) for each in (folder, other)]
    try:
        with contextlib.ExitStack() as stack:
            mine, theirs = (stack.enter_context(zipfile.ZipFile(path)) for path in paths)
            for name in (INDEX, ARRAY):
                entries = mine.getinfo(name), theirs.getinfo(name)
                kinds = {(entry.file_size, entry.CRC, entry.compress_type) for entry in entries}
                if kinds != {(entries[0].file_size, entries[0].CRC, zipfile.ZIP_STORED)}:
                    return False
                members = [stack.enter_context(side.open(name)) for side in (mine, theirs)]
                part = b" "
                while part:
                    part = members[0].read(IN_MEMORY // 8)
                    if part != members[1].read(IN_MEMORY // 8):
                        return False
    except DAMAGED:
        return False  # Reading it says what is wrong.
    return True


def read_from(stream: BinaryIO, path: str, whole: bytes | None = None) -> _Content | None:
    """The content of an open file; ``None`` of a file of another version.

    Args:
        stream: the file.
        path: its name; sketches are read from there when they are asked for.
        whole: all bytes of the file, if there is none of this name.

    Raises:
        DumpFormatError: the file is damaged; the message names it.
    """
    from probe.common.numerics.sketch import VERSION

    try:
        with zipfile.ZipFile(stream) as archive:
            index = _decoded(read_member(archive, stream, INDEX), VERSION)
            if index.version != VERSION:
                return None
            header = array_header(len(index.items))
            start = _start_of_rows(archive, stream, header, len(index.items) * ROW)
            choices = None
            if index.choices:
                members = [read_member(archive, stream, name) for name in (INDICES_MEMBER, MARGINS_MEMBER)]
                choices = ChoicesTable(index.choices, (members[0], members[1]))
    except (*DAMAGED, msgspec.MsgspecError) as error:
        reason = str(error)[:_LONGEST_REASON]
        raise DumpFormatError(f"{path} is damaged: {reason}. Collect the dump again, or delete this file.") from None
    return _Content(index, _Rows(path, start, len(index.items), whole), choices)


def _start_of_rows(archive: zipfile.ZipFile, stream: BinaryIO, header: bytes, size: int) -> int:
    """The place of the first sketch in the file; all of them are read once, because the archive has their checksum.

    Raises:
        ValueError: the member is none of so many bytes of sketches.
    """
    entry = archive.getinfo(ARRAY)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != len(header) + size:
        raise ValueError(f"its rows are not those of {size // ROW} tensors")
    with archive.open(entry) as member:
        if member.read(len(header)) != header:
            raise ValueError(f"its rows are not those of {size // ROW} tensors")
        while member.read(IN_MEMORY // 8):
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


_known: WeakValueDictionary[bytes, _Index] = WeakValueDictionary()
"""The indexes in use, by the SHA-256 of their texts: two runs of one program have one, which is read and kept once."""


def _decoded(text: bytes, version: int) -> _Index:
    """The index that a text is; nothing is known of one of another version.

    Raises:
        ValueError, msgspec.MsgspecError: it is none.
    """
    digest = hashlib.sha256(text).digest()
    found = _known.get(digest)
    if found is None:
        found = msgspec.json.decode(text, type=_Index)
        if found.version == version:
            _check(found)
        _known[digest] = found
    return found


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
    if not all(row in known for row in index.choices):
        raise ValueError("choices of a row that is out of range")
    if not all(len(numbers) == 9 and all(map(math.isfinite, numbers)) for numbers in index.excluded.values()):
        raise ValueError("excluded elements without nine numbers")
