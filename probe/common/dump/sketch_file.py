"""sketch.npz: what a run knows of each tensor beyond its entry in dump.json.

An archive with two members, which ``numpy.load`` opens without pickles:

    sketch      float32, a row of 64 sums for each tensor; a row of NaN for one without a sketch
    index.json  the text of an object:
                "version" of the sketches,
                "items" the names of the tensors, in the order of the rows,
                "made_by" for each of them the item that returned it, or null where that is not known,
                "excluded" for each tensor of which the sketch leaves elements out, by the number of its row:
                the number of such elements and eight signed sums that tell which
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Optional

import msgspec

from probe.common import files
from probe.common.dump import naming
from probe.common.dump.layout import SKETCH_FILE
from probe.common.errors import DumpFormatError

if TYPE_CHECKING:
    # Statistics and checksums are read without numpy.
    from probe.common.numerics.sketch import Sketch

SKETCH, MAKER = "sketch", "from"
"""The keys of an entry in a journal: the packed sketch, and the name of the maker. dump.json has neither."""

_LANES = 64
_ROW = 4 * _LANES
"""Bytes; see `probe.common.numerics.sketch.Sketch.packed`."""
_EXCLUDED = "<9f"
"""The number of excluded elements and eight marks, which may follow a row."""
_ARRAY, _INDEX = "sketch.npy", "index.json"
_DAMAGED = (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError)
_NO_SKETCH = b"\0\0\xc0\x7f" * _LANES
"""A row of NaN."""
_PARTS = {"input_args": "input", "input_kwargs": "input"}
"""The words for the fields of a record in the names of items, where they are others."""
_DEEPEST = 400


class SketchTable:
    """The sketch and the maker of each tensor of a dump, by the names of items."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._sketches = bytearray()
        self._makers: list[Optional[str]] = []  # noqa: UP045 (evaluated, on Python 3.9 too)
        self._excluded: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    # --- from a journal

    def take(self, name: str, fields: Any) -> None:
        """Move sketches and makers of the record `name` from its fields into the table."""
        if naming.is_gradients(name) or naming.is_debug(name) or type(fields) is not dict:
            self._take(name, fields, 0)
        else:
            for key, value in fields.items():
                if value:
                    self._take(f"{name}.{_PARTS.get(key, key)}", value, 0)

    def _take(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is dict:
            if type(value.get("type")) is str:
                nested = value.get("tensor")
                entry = nested if type(nested) is dict else value
                sketch, maker = entry.pop(SKETCH, None), entry.pop(MAKER, None)
                if sketch is not None or maker is not None:
                    self._add(name, sketch, maker)
            elif depth < _DEEPEST:
                for key, child in value.items():
                    self._take(f"{name}.{key}", child, depth + 1)
        elif kind is list and depth < _DEEPEST:
            # The one gradient of a parameter stands in a list of its own.
            single = len(value) == 1 and naming.is_gradients(name.rpartition(".")[0])
            for i, child in enumerate(value):
                self._take(name if single else f"{name}.{i}", child, depth + 1)

    def _add(self, name: str, sketch: Any, maker: Any) -> None:
        row = len(self._makers)
        self._rows[name] = row
        self._makers.append(maker if type(maker) is str else None)
        packed = sketch if type(sketch) is bytes else b""
        self._sketches += packed[:_ROW] if len(packed) >= _ROW else _NO_SKETCH
        if len(packed) == _ROW + struct.calcsize(_EXCLUDED):
            self._excluded[row] = packed[_ROW:]

    # --- asked

    def sketch(self, name: str) -> Sketch | None:
        """The sketch of the item `name`; ``None`` where there is none."""
        row = self._rows.get(name)
        if row is None:
            return None
        import numpy as np

        from probe.common.numerics.sketch import Sketch

        sums = np.frombuffer(self._sketches, "<f4", _LANES, row * _ROW)
        if sums[0] != sums[0]:
            return None
        more = self._excluded.get(row)
        if more is None:
            return Sketch(sums)
        numbers = np.frombuffer(more, "<f4")
        return Sketch(sums, int(numbers[0]), numbers[1:])

    def made_by(self, name: str) -> str | None:
        """The item that returned the tensor of the item `name`; ``None`` where it is not known."""
        row = self._rows.get(name)
        return None if row is None else self._makers[row]

    # --- files

    def write(self, folder: str) -> None:
        """Write the file into `folder`; without any tensor in the table, remove an earlier one."""
        path = os.path.join(folder, SKETCH_FILE)
        if not self._rows:
            if os.path.lexists(path):
                os.unlink(path)
            return
        from probe.common.numerics.sketch import VERSION

        index = {
            "version": VERSION,
            "items": list(self._rows),
            "made_by": self._makers,
            "excluded": {row: struct.unpack(_EXCLUDED, packed) for row, packed in self._excluded.items()},
        }
        # What numpy's own writer takes for two arrays, this takes for the whole file several times over.
        with files.replacing(path) as stream, zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(_ARRAY, _header(len(self._makers)) + self._sketches)
            archive.writestr(_INDEX, msgspec.json.encode(index))


def _header(rows: int) -> bytes:
    """The beginning of an .npy file of version 1.0 with `rows` sketches."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {_LANES}), }}"
    padded = text + " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode()


class _Index(msgspec.Struct):
    version: int
    items: list[str]
    made_by: list[Optional[str]]  # noqa: UP045 (evaluated, on Python 3.9 too)
    excluded: dict[int, list[float]] = {}


def read(folder: str) -> SketchTable | None:
    """The table of the dump in `folder`; ``None`` where it has no such file, or one of another version.

    Raises:
        DumpFormatError: the file is damaged; the message names it.
    """
    path = os.path.join(folder, SKETCH_FILE)
    if not os.path.isfile(path):
        return None
    from probe.common.numerics.sketch import VERSION

    table = SketchTable()
    try:
        with files.open_for_reading(path) as stream, zipfile.ZipFile(stream) as archive:
            index = msgspec.json.decode(archive.read(_INDEX), type=_Index)
            header, rows = _header(len(index.items)), archive.read(_ARRAY)
            if index.version != VERSION:
                return None
            table._excluded = {row: struct.pack(_EXCLUDED, *numbers) for row, numbers in index.excluded.items()}
    except (*_DAMAGED, msgspec.MsgspecError) as error:
        raise DumpFormatError(f"{path} is damaged: {error}. Collect the dump again, or delete this file.") from None
    known = len(index.items)
    if not rows.startswith(header) or len(rows) != len(header) + known * _ROW or len(index.made_by) != known:
        raise DumpFormatError(f"{path} is damaged: its parts have other lengths. Collect the dump again.")
    table._rows = {name: i for i, name in enumerate(index.items)}
    table._makers = index.made_by
    table._sketches = bytearray(memoryview(rows)[len(header) :])
    return table
