"""sketch.npz: what a run knows of each tensor beyond its entry in dump.json.

An archive of numpy arrays, without pickles, that ``numpy.load`` reads:

    sketch_version  the version of the sketches, an integer
    items           JSON, as bytes: the names of the tensors, in the order of dump.json
    sketch          float32, a row of 64 sums for each of them; a row of NaN for a tensor without a sketch
    made_by         JSON, as bytes: for each tensor the item that returned it, or null where that is not known
    excluded_row    int64, the rows of tensors of which the sketch leaves elements out
    excluded        float32, for each of these the number of such elements and eight signed sums that tell which
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from typing import TYPE_CHECKING, Any, Optional

import msgspec

from probe.common import files
from probe.common.dump import naming
from probe.common.dump.layout import SKETCH_FILE
from probe.common.errors import DumpFormatError

if TYPE_CHECKING:
    # Statistics and checksums are read without numpy.
    from numpy.typing import NDArray

    from probe.common.numerics.sketch import Sketch

SKETCH, MAKER = "sketch", "from"
"""The keys of an entry in a journal: the packed sketch, and the name of the maker. dump.json has neither."""

_LANES, _MARKS = 64, 8
_ROW, _EXCLUDED = 4 * _LANES, 4 * (1 + _MARKS)
"""Bytes of a row and of what is known of excluded elements; see `probe.common.numerics.sketch.Sketch.packed`."""
_NO_SKETCH = b"\0\0\xc0\x7f" * _LANES
"""A row of NaN."""
_PARTS = {"input_args": "input", "input_kwargs": "input"}
"""The words for the fields of a record in the names of items, where they are others."""
_DEEPEST = 400
_LONGEST_REASON = 200


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
        # A damaged file may have anything in the place of the number.
        return Sketch(sums, int(numbers[0]), numbers[1:]) if math.isfinite(numbers[0]) else None

    def made_by(self, name: str) -> str | None:
        """The item that returned the tensor of the item `name`; ``None`` where it is not known."""
        row = self._rows.get(name)
        return None if row is None else self._makers[row]

    # --- files

    def write(self, folder: str) -> None:
        """Write the file into `folder`; without any tensor in the table, remove an earlier one."""
        path = os.path.join(folder, SKETCH_FILE)
        if not self._rows:
            # A folder of this name is no earlier file, and no reader takes it for one.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
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
                made_by=_as_bytes(self._makers),
                excluded_row=np.array(list(self._excluded), np.int64),
                excluded=excluded,
            )


class UnreadTable:
    """The `SketchTable` of the dump in a folder, which is read when something is asked of it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._table: SketchTable | None = None

    def _read(self) -> SketchTable:
        if self._table is None:
            self._table = read(self._folder) or SketchTable()
        return self._table

    def sketch(self, name: str) -> Sketch | None:
        return self._read().sketch(name)

    def made_by(self, name: str) -> str | None:
        return self._read().made_by(name)


def read(folder: str) -> SketchTable | None:
    """The table of the dump in `folder`; ``None`` where it has no such file, or one of another version.

    No more memory is taken than a few times the bytes of the file.

    Raises:
        DumpFormatError: the file is damaged; the message names it.
    """
    path = os.path.join(folder, SKETCH_FILE)
    if not os.path.isfile(path):
        return None
    from probe.common.numerics.sketch import VERSION

    try:
        with files.open_for_reading(path) as stream, zipfile.ZipFile(stream) as archive:
            size = os.fstat(stream.fileno()).st_size
            if _part(archive, size, "sketch_version", "<i8", ()).item() != VERSION:
                return None
            names = _texts(_part(archive, size, "items", "|u1", (-1,)), list[str])
            makers = _texts(_part(archive, size, "made_by", "|u1", (-1,)), list[Optional[str]])
            if len(makers) != len(names):
                raise ValueError(f"{len(makers)} makers of {len(names)} tensors")
            sketches = _part(archive, size, "sketch", "<f4", (len(names), _LANES))
            rows = _part(archive, size, "excluded_row", "<i8", (-1,)).tolist()
            excluded = _part(archive, size, "excluded", "<f4", (len(rows), 1 + _MARKS))
        if len(set(names)) != len(names) or not all(0 <= row < len(names) for row in rows):
            raise ValueError("a name repeats, or a row is out of range")
    except (ValueError, KeyError, OSError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        raise DumpFormatError(
            f"{path} is damaged: {str(error)[:_LONGEST_REASON]}. Collect the dump again, or delete this file."
        ) from None
    table = SketchTable()
    table._rows = {name: i for i, name in enumerate(names)}
    table._makers = makers
    table._sketches = bytearray(sketches)
    table._excluded = {row: values.tobytes() for row, values in zip(rows, excluded)}
    return table


def _part(archive: zipfile.ZipFile, most: int, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of the archive, checked before memory is taken for it; -1 in `shape` is any length."""
    from probe.common.dump.reading.file_forms.npy import array_in

    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > most:
        raise ValueError(f"{name} is compressed, or larger than the file")
    array = array_in(archive.read(entry))
    lengths = zip(array.shape, shape)
    if array.ndim != len(shape) or array.dtype.str != dtype or any(a != b != -1 for a, b in lengths):
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
    return array


def _texts(array: NDArray[Any], kind: Any) -> Any:
    try:
        return msgspec.json.decode(array.tobytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a list of names: {error}") from None


def _as_bytes(value: Any) -> NDArray[Any]:
    import numpy as np

    return np.frombuffer(msgspec.json.encode(value), np.uint8)
