"""sketch.npz: what a run knows of each tensor beyond its entry in dump.json.

An archive of numpy arrays, without pickles, that ``numpy.load`` reads:

    sketch_version  the version of the sketches, an integer
    items           JSON, as bytes: the names of the tensors, in the order of dump.json
    sketch          float32, a row of 64 sums for each of them; a row of NaN for a tensor without a sketch
    made_by         JSON, as bytes: for each tensor its maker (docs/reference/reading.md), or null where it is not known
    excluded_row    int64, the rows of tensors of which the sketch leaves elements out
    excluded        float32, for each of these the number of such elements and eight signed sums that tell which
"""

from __future__ import annotations

import os
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Optional, Union

import msgspec

from probe.common import files
from probe.common.dump import naming
from probe.common.dump.layout import SKETCH_FILE
from probe.common.errors import DumpFormatError

if TYPE_CHECKING:
    # Statistics and checksums are read without numpy.
    from numpy.typing import NDArray

    from probe.common.numerics.sketch import Sketch

SKETCH, MAKER, SERIAL = "sketch", "from", "made"
"""The keys of an entry in a journal: the packed sketch, the maker, and the number by which makers of others name it.

dump.json has none of them. The maker is a text, or the number of another entry, which is negative for a view of that
tensor. The maker of data is the number of the entry itself.
"""
VIEW, DATA = "view:", "data:"
"""The beginnings of a maker's text: of a view that no recorded call made, and of what no recorded call made."""

_LANES, _MARKS = 64, 8
_ROW, _EXCLUDED = 4 * _LANES, 4 * (1 + _MARKS)
"""Bytes of a row and of what is known of excluded elements; see `probe.common.numerics.sketch.Sketch.packed`."""
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
        self._makers: list[Union[str, int, None]] = []  # noqa: UP007 (evaluated, on Python 3.9 too)
        self._numbered: dict[int, str] = {}
        """By the numbers that makers have, the names of their tensors, of data with `DATA` before."""
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
                sketch, maker, serial = entry.pop(SKETCH, None), entry.pop(MAKER, None), entry.pop(SERIAL, None)
                if sketch is not None or maker is not None:
                    self._add(name, sketch, maker)
                if type(serial) is int:
                    self._numbered[serial] = DATA + name if maker == serial else name
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
        self._makers.append(maker if type(maker) in (str, int) else None)
        packed = sketch if type(sketch) is bytes else b""
        self._sketches += packed[:_ROW] if len(packed) >= _ROW else _NO_SKETCH
        if len(packed) == _ROW + _EXCLUDED:
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
        return None if row is None else self._text_of(self._makers[row])

    def _text_of(self, maker: str | int | None) -> str | None:
        if not isinstance(maker, int):
            return maker
        named = self._numbered.get(abs(maker))
        return VIEW + named if named is not None and maker < 0 else named

    # --- files

    def write(self, folder: str) -> None:
        """Write the file into `folder`; without any tensor in the table, remove an earlier one."""
        path = os.path.join(folder, SKETCH_FILE)
        if not self._rows:
            if os.path.lexists(path):
                os.unlink(path)
            return
        import numpy as np

        from probe.common.numerics.sketch import VERSION

        excluded = np.frombuffer(b"".join(self._excluded.values()), "<f4").reshape(-1, 1 + _MARKS)
        with files.replacing(path) as stream:
            np.savez(
                stream,
                sketch_version=np.int64(VERSION),
                items=_as_bytes(list(self._rows)),
                sketch=np.frombuffer(self._sketches, "<f4").reshape(-1, _LANES),
                made_by=_as_bytes([self._text_of(maker) for maker in self._makers]),
                excluded_row=np.array(list(self._excluded), np.int64),
                excluded=excluded,
            )


def read(folder: str) -> SketchTable | None:
    """The table of the dump in `folder`; ``None`` where it has no such file, or one of another version.

    Raises:
        DumpFormatError: the file is damaged; the message names it.
    """
    path = os.path.join(folder, SKETCH_FILE)
    if not os.path.isfile(path):
        return None
    import numpy as np

    from probe.common.numerics.sketch import VERSION

    table = SketchTable()
    try:
        with files.open_for_reading(path) as stream, np.load(stream, allow_pickle=False) as content:
            if int(content["sketch_version"]) != VERSION:
                return None
            names = msgspec.json.decode(content["items"].tobytes(), type=list[str])
            makers = msgspec.json.decode(content["made_by"].tobytes(), type=list[Optional[str]])
            sketches: NDArray[Any] = np.ascontiguousarray(content["sketch"], "<f4")
            rows, excluded = content["excluded_row"].tolist(), np.ascontiguousarray(content["excluded"], "<f4")
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DumpFormatError(f"{path} is damaged: {error}. Collect the dump again, or delete this file.") from None
    if sketches.shape != (len(names), _LANES) or len(makers) != len(names) or excluded.shape != (len(rows), 1 + _MARKS):
        raise DumpFormatError(f"{path} is damaged: its parts have other lengths. Collect the dump again.")
    table._rows = {name: i for i, name in enumerate(names)}
    table._makers = list(makers)
    table._sketches = bytearray(sketches)
    table._excluded = {row: values.tobytes() for row, values in zip(rows, excluded)}
    return table


def _as_bytes(value: Any) -> NDArray[Any]:
    import numpy as np

    return np.frombuffer(msgspec.json.encode(value), np.uint8)
