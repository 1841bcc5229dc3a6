"""Writing sketch.npz, whose form `probe.common.dump.sketch_file` describes, from the records of a journal."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import zipfile
from array import array
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import msgspec

from probe.common import files
from probe.common.dump import naming
from probe.common.dump.choices import CHOICES, ChoicesWriter
from probe.common.dump.layout import SKETCH_FILE
from probe.common.dump.sketch_file import (
    ARRAY,
    AT_ONCE,
    EXCLUDED,
    IN_MEMORY,
    INDEX,
    MAKER,
    MOST_STORED,
    NO_SKETCH,
    ROW,
    SERIAL,
    SKETCH,
    VIEW,
    MakerRow,
    SketchTable,
    array_header,
    member_of,
    read_from,
    stored,
)

_PARTS = {"input_args": "input", "input_kwargs": "input"}
"""The words for the fields of a record in the names of items, where they are others."""
_DEEPEST = 400
"""The depth to which values are looked through; a guess: no program is known to nest values so deeply."""
_UNKNOWN, _TEXT = -1, -2
_LARGEST = (1 << 63) - 1
"""The largest number of an entry: one of a damaged journal may be larger."""


AddEntry = Callable[[str, dict[str, Any]], None]
"""Takes the name of an item and its entry."""


def each_entry(name: str, fields: Any, add: AddEntry) -> None:
    """Give `add` every entry in the fields of the record `name`, tensors and plain values, in their order."""
    if type(fields) is not dict:
        _each(name, fields, 0, add)
    elif naming.is_gradients(name):
        for parameter, value in fields.items():
            # The one gradient of a parameter stands in a list of its own.
            _each_gradient(f"{name}.{parameter}", value, add)
    elif type(fields.get("type")) is str:
        _each(name, fields, 0, add)  # a value that the program saved
    else:
        for key, value in fields.items():
            if value and (type(value) is list or type(value) is dict):
                part = f"{name}.{_PARTS.get(key, key)}"
                # A damaged journal may have numbers in the place of names.
                if type(value) is dict and type(key) is str and naming.is_gradients(key):
                    for parameter, gradient in value.items():
                        _each_gradient(f"{part}.{parameter}", gradient, add)
                else:
                    _each(part, value, 0, add)


def _each_gradient(name: str, value: Any, add: AddEntry) -> None:
    for entry in value if type(value) is list else (value,):
        _each(name, entry, 0, add)


def _each(name: str, value: Any, depth: int, add: AddEntry) -> None:
    if type(value) is dict:
        if type(value.get("type")) is str:
            nested = value.get("tensor")
            add(name, nested if type(nested) is dict else value)
            return
        children: Any = value.items()
    elif type(value) is list:
        children = enumerate(value)
    else:
        return
    for key, child in children:
        # Nearly all are tensors.
        if type(child) is dict and type(child.get(SKETCH)) is bytes:
            add(f"{name}.{key}", child)
        elif child and depth < _DEEPEST:
            _each(f"{name}.{key}", child, depth + 1, add)


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
        """The hash of the packed sketch of each row, or of ``None``."""
        self._numbered: dict[int | None, int] = {}
        """The rows of entries, by the numbers that makers have."""
        self._texts: dict[str, int] = {}
        self._excluded: dict[int, tuple[float, ...]] = {}
        self._choices = ChoicesWriter()

    # --- from a journal

    def take(self, name: str, fields: Any) -> None:
        """Move sketches and makers of the record `name` out of its fields."""
        each_entry(name, fields, self._add)

    def _add(self, name: str, entry: dict[str, Any]) -> None:
        sketch, maker, serial = entry.pop(SKETCH, None), entry.pop(MAKER, None), entry.pop(SERIAL, None)
        if sketch is None and maker is None:
            return
        if CHOICES in entry:
            self._choices.take(self._count, entry.pop(CHOICES))
        self.take_rows(
            (name,),
            (sketch if type(sketch) is bytes else None,),
            (maker if type(maker) is int or type(maker) is str else None,),
            (serial if type(serial) is int else None,),
        )

    def take_rows(
        self,
        names: Sequence[str],
        sketches: Sequence[bytes | None],
        makers: Sequence[int | str | None],
        serials: Sequence[int | None],
    ) -> None:
        """Take the names, sketches, makers and numbers of the entries of a record."""
        first = self._count
        self._count = first + len(names)
        self._latest_names += names
        self._hashes.extend(map(hash, sketches))
        self._numbered.update(zip(serials, range(first, self._count)))
        self._latest += [
            sketch if sketch is not None and len(sketch) == ROW else self._cut(sketch, row)
            for row, sketch in enumerate(sketches, first)
        ]
        self._makers.extend(
            [
                maker if type(maker) is int and 0 <= maker <= _LARGEST else self._number_of(maker, row)
                for row, maker in enumerate(makers, first)
            ]
        )
        if len(self._latest) >= AT_ONCE:
            self._settle()

    def _cut(self, sketch: bytes | None, row: int) -> bytes:
        """The row of a sketch that leaves elements out, which are noted, or of none."""
        if sketch is None or len(sketch) < ROW:
            return NO_SKETCH
        if len(sketch) == ROW + EXCLUDED.size:
            self._excluded[row] = EXCLUDED.unpack_from(sketch, ROW)
        return sketch[:ROW]

    def _number_of(self, maker: int | str | None, row: int) -> int:
        """The number of the maker of a view, or of a maker that is no entry."""
        if maker is None or (type(maker) is int and abs(maker) > _LARGEST):
            return _UNKNOWN
        if type(maker) is int:
            self._views.append(row)
            return -maker
        text = str(maker)
        if text.startswith(VIEW):
            self._views.append(row)
            text = text[len(VIEW) :]
        return _TEXT - self._texts.setdefault(text, len(self._texts))

    def _settle(self) -> None:
        """Let the latest rows wait with the others."""
        if self._latest:
            if self._rows is None:
                waiting = (tempfile.SpooledTemporaryFile(IN_MEMORY) for _ in range(2))  # noqa: SIM115 (see `close`)
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
        if self._choices.numbers:
            rest["choices"] = self._choices.numbers
        choices = self._choices.members()
        if self._rows is None and sum(map(len, choices.values())) < MOST_STORED // 2:
            # None waits, so that all members are here.
            index = {"version": VERSION, "items": self._latest_names, **rest}
            array = array_header(self._count) + b"".join(self._latest)
            stream.writelines(stored({**choices, ARRAY: array, INDEX: msgspec.json.encode(index)}))
            return
        self._settle()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in choices.items():
                archive.writestr(member_of(name), content)
            with archive.open(member_of(ARRAY), "w", force_zip64=True) as member:
                member.write(array_header(self._count))
                self._rows.seek(0)
                shutil.copyfileobj(self._rows, member, IN_MEMORY)
            with archive.open(member_of(INDEX), "w", force_zip64=True) as member:
                member.write(f'{{"version":{VERSION},"items":['.encode())
                shutil.copyfileobj(_WithoutLast(self._names), member, IN_MEMORY)
                member.write(b"]," + msgspec.json.encode(rest)[1:])

    def _made_by(self) -> list[MakerRow]:
        texts = list(self._texts)
        numbered, hashes, views = self._numbered, self._hashes, frozenset(self._views)
        found: list[MakerRow] = []
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


def table_of(writer: SketchWriter, path: str) -> SketchTable | None:
    """The table of what was collected from the journal `path`; ``None`` if there was nothing."""
    stream = io.BytesIO()
    writer.write_to(stream)
    content = read_from(stream, path, stream.getvalue())
    return SketchTable(lambda: content) if content is not None and content.columns.items else None
