"""The files of a dump, made from its journal: dump.json or debug.json, stack.json, construct.json.

Each is written aside and renamed. Indented by one blank; NaN and the infinities as Python's json writes them, other
numbers with the fewest digits that give the same value back.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Callable

import msgspec

from probe.common import files
from probe.common.callstack import Frame, frame_text
from probe.common.journal import FILE_NAME, NOT_FINITE, Header, JournalReader

FILES = ("dump.json", "debug.json", "stack.json", "construct.json")
"""What can be made from a journal."""

_encode_text = json.encoder.encode_basestring_ascii
_float = float.__repr__
_TENSOR_KEYS = ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad")
_SIZES = {int, type(None)}
_SCALARS = {bool, int, float, str, type(None)}
_compact = msgspec.json.encode
_indented = msgspec.json.format
_packed = msgspec.msgpack.encode
_AT_ONCE = 32
"""Records that are encoded together, which takes half the time of one by one."""
_Record = tuple[str, Any, bool]
"""Name, fields, and whether all numbers in them are known to be finite."""

_source_lines: dict[Frame, str] = {}
"""Lines of stack.json as JSON, by their frames. The next step has mostly the same."""
_MOST_SOURCE_LINES = 1 << 14


def skeleton(folder: str, header: Header) -> None:
    """Write the files as they are before the first record."""
    _write_data(folder, header, ())
    if header.level != "debug" and header.extra_info:
        for name in ("stack.json", "construct.json"):
            with files.replacing(os.path.join(folder, name)) as stream:
                stream.write(b"{}")


def write(folder: str, change: Callable[[Any], None] | None = None) -> Header:
    """Make the files of `folder` from the journal in it.

    Args:
        folder: With the journal.
        change: Called with the fields of every record before they are written.

    Raises:
        DumpFormatError: the journal cannot be read.
        OSError: a file cannot be written.
    """
    with JournalReader(os.path.join(folder, FILE_NAME)) as journal:
        header = _with_place(journal.header, folder)
        records = journal.told_apart()
        _write_data(folder, header, records if change is None else _changed(records, change))
        if header.level != "debug" and header.extra_info:
            _write_stacks(folder, journal)
            _write_tree(folder, journal)
    return header


def _changed(records: Iterable[_Record], change: Callable[[Any], None]) -> Iterator[_Record]:
    for name, fields, _ in records:
        change(fields)
        # What is there now is not known.
        yield name, fields, False


def _with_place(header: Header, folder: str) -> Header:
    """`header` with the folder's present name: ``proc<PID>`` becomes ``rank<R>`` when the process gets a rank."""
    if header.dump_data_dir is None:
        return header
    above, name = os.path.split(header.dump_data_dir)
    now = os.path.basename(os.path.abspath(folder))
    if not os.path.basename(above).startswith("proc") or not now.startswith("rank"):
        return header
    return dataclasses.replace(header, dump_data_dir=os.path.join(os.path.dirname(above), now, name))


def _write_data(folder: str, header: Header, records: Iterable[_Record]) -> None:
    with files.replacing(os.path.join(folder, header.file_name)) as stream:
        _put_data(stream, header, records)


def _put_data(stream: BinaryIO, header: Header, records: Iterable[_Record]) -> None:
    lines = [f' "{key}": {json.dumps(getattr(header, key))}' for key in ("task", "level", "framework", "dump_data_dir")]
    stream.write(("{\n" + ",\n".join(lines) + ',\n "data": ').encode())
    write_json = JsonText()
    before = b"{"
    for several, odd in _together(records):
        stream.write(before)
        stream.write(write_json.members(several, 1, odd))
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
    with files.replacing(os.path.join(folder, "construct.json")) as stream:
        stream.write(JsonText().encoded({name: node.parent for name, node in calls}, 0))


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
            text = tuple(line for line in map(lines.__getitem__, journal.stacks.get(number, ())) if line)
            names = named[number] = groups.setdefault(text, [])
        names.append(_encode_text(name))
    entries = [f'\n "{i}": [\n  {_rows(names)},\n  {_rows(text)}\n ]' for i, (text, names) in enumerate(groups.items())]
    with files.replacing(os.path.join(folder, "stack.json")) as stream:
        stream.write(("{" + ",".join(entries) + "\n}" if entries else "{}").encode())


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
                # What is not found may be there the next time.
                text = _source_lines[frame] = _encode_text(line)
        self[frame] = text
        return text


def _quote(text: Any) -> str:
    """`text` as JSON; what a corrupted journal has in the place of a text becomes one."""
    return _encode_text(text if type(text) is str else str(text))


class JsonText:
    """Writes values as ``json.dumps(value, indent=1)`` would at some depth. That encoder is not compiled.

    Most of a dump are tensors that differ in their statistics alone, so what surrounds these is made once.
    """

    def __init__(self) -> None:
        self._around: dict[tuple[Any, ...], str] = {}

    def __call__(self, value: Any, indent: int) -> str:
        kind = type(value)
        if kind is dict:
            if not value:
                return "{}"
            if len(value) >= 8 and tuple(value)[:8] == _TENSOR_KEYS and _is_tensor(*tuple(value.values())[:8]):
                return self._tensor(value, indent)
        elif kind is not list and kind is not tuple:
            return _scalar(value)
        elif not value:
            return "[]"
        # Loops, not comprehensions: one frame a level lets deep values fit into Python's limit.
        inner = indent + 1
        margin = "\n" + " " * inner
        parts = []
        if kind is dict:
            for key, item in value.items():
                parts.append(f"{margin}{_quote(key)}: {self(item, inner)}")
            return "{" + ",".join(parts) + "\n" + " " * indent + "}"
        for item in value:
            parts.append(margin + self(item, inner))
        return "[" + ",".join(parts) + "\n" + " " * indent + "]"

    def encoded(self, value: Any, indent: int) -> bytes:
        """The same text by compiled code where that can write it, in a tenth of the time.

        A number then has its exponent as 1e-7 and not as 1e-07.
        """
        text = _compiled(value, indent)
        return self(value, indent).encode() if text is None else text

    def members(self, values: dict[str, Any], indent: int, odd: Sequence[str] = ()) -> bytes:
        """What `encoded` has between the braces of a dict that is not empty; but for `odd`, all numbers are finite."""
        margin = b"\n" + b" " * (indent + 1)
        text = _compiled({**values, **dict.fromkeys(odd)}, indent, finite=True)
        if text is None:
            # One of them keeps the others from being encoded together.
            return b",".join(
                margin + _quote(name).encode() + b": " + self.encoded(value, indent + 1)
                for name, value in values.items()
            )
        text = text[1 : -len(b"\n}") - indent]
        for name in odd:
            # Nothing else begins a line like this: what is inside a value stands further to the right.
            before = margin + _quote(name).encode() + b": "
            text = text.replace(before + b"null", before + self.encoded(values[name], indent + 1), 1)
        return text

    def _tensor(self, entry: dict[str, Any], indent: int) -> str:
        type_name, dtype, shape, largest, smallest, mean, norm, requires_grad, *more = entry.values()
        key = (type_name, dtype, tuple(shape), requires_grad, indent)
        around = self._around.get(key)
        if around is None:
            around = self._around[key] = self._frame(type_name, dtype, shape, requires_grad, indent)
        text = around % (_scalar(largest), _scalar(smallest), _scalar(mean), _scalar(norm))
        if more:
            margin = ",\n" + " " * (indent + 1)
            for name, value in zip(list(entry)[8:], more):
                text += f"{margin}{_quote(name)}: {self(value, indent + 1)}"
        return text + "\n" + " " * indent + "}"

    def _frame(self, type_name: str, dtype: str, shape: list[Any], requires_grad: bool, indent: int) -> str:
        margin = ",\n" + " " * (indent + 1)
        fixed = f'"type": {_quote(type_name)}{margin}"dtype": {_quote(dtype)}{margin}"shape": {self(shape, indent + 1)}'
        statistics = margin.join(f'"{key}": %s' for key in ("Max", "Min", "Mean", "Norm"))
        last = f'"requires_grad": {_scalar(requires_grad)}'
        return "{" + margin[1:] + fixed.replace("%", "%%") + margin + statistics + margin + last


def _is_tensor(
    name: Any, dtype: Any, shape: Any, largest: Any, smallest: Any, mean: Any, norm: Any, requires_grad: Any
) -> bool:
    """Whether these are of the types that the entry of a tensor has; others can be equal to them, as 1 is to True."""
    if type(name) is not str or type(dtype) is not str or type(shape) is not list or type(requires_grad) is not bool:
        return False
    return _SIZES.issuperset(map(type, shape)) and _SCALARS.issuperset(map(type, (largest, smallest, mean, norm)))


def _compiled(value: Any, indent: int, finite: bool = False) -> bytes | None:
    """The text of `value` by compiled code; ``None`` where that would write another one, or none.

    `finite`: all numbers in it are known to be.
    """
    try:
        text = _compact(value)
        # What is not finite is null now, and what `json` escapes besides control characters is not escaped.
        alike = text.isascii() and b"\x7f" not in text
        if alike and (finite or not (b"null" in text and NOT_FINITE.search(_packed(value)))):
            # Lists around it indent it. The n-th opens with a bracket, a line end and n blanks, and closes the other
            # way round with n - 1.
            laid_out = _indented(b"[" * indent + text + b"]" * indent, indent=1)
            before, after = sum(range(3, 3 + indent)), sum(range(2, 2 + indent))
            return laid_out[before : len(laid_out) - after]
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass  # a value only the slow way can write, or none of them, and then that says so
    return None


def _scalar(value: Any) -> str:
    kind = type(value)
    if kind is float:
        return _number(value)
    if kind is str:
        return _quote(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    try:
        return str(value)
    except ValueError:
        # An integer of more digits than Python converts; JSON has no hexadecimal.
        return _quote(hex(value))


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (_INFINITY, -_INFINITY):
        return "Infinity" if value > 0 else "-Infinity"
    return _float(value)


_INFINITY = float("inf")
