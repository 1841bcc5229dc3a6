"""Values as the text of dump.json, several times as fast as Python's json lays one out over lines.

Python's encoder is compiled for text on one line only. msgspec lays such a text out, and encodes values faster still,
but knows neither NaN nor the infinities, which a dump may hold, and does not escape what is no ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from probe.common.dump.journal import NOT_FINITE

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
