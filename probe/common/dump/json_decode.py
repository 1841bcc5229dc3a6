"""The JSON files of a dump, also those that are cut short, decoded with errors that name file and byte.

msgspec is several times as fast as the standard library but knows no NaN and no infinity, which a dump may hold. A
file that has them is decoded with these numbers replaced by marked texts; `number` turns them back.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from probe.common import files
from probe.common.dump.naming import parse
from probe.common.errors import DumpFormatError, FileCheckException

T = TypeVar("T")

NUMBERS = {"\0NaN": float("nan"), "\0Infinity": float("inf"), "\0-Infinity": float("-inf")}

# Places of a value. Inside a text this can match too; the quotes put there then end the text before a letter,
# which is no JSON, so that such a file is never read wrongly but by the slow way.
_NOT_JSON = re.compile(rb"(?<=[:,\[\s])(-?Infinity|NaN)(?=[\s,\]}])")
_WORDS = (b"NaN", b"Infinity")
_PLACE = re.compile(r" \(byte (\d+)\)")
_STRIDE, _LONGEST = 30, 308
"""A run of more digits than the largest float64 has shows in each of the bytes that are so far apart."""
_DIGITS = bytes(49 if 48 <= byte < 58 else 48 for byte in range(256))


def load_bytes(path: str) -> bytes:
    """The content of a file.

    Raises:
        FileCheckException: it does not exist or cannot be read.
    """
    try:
        with files.open_for_reading(path) as stream:
            return stream.read()
    except OSError as error:
        raise FileCheckException(f"{path}: cannot be read: {error.strerror}.") from error


def decode(path: str, content: bytes, kind: type[T]) -> T:
    """`content`, which is that of the file `path`, as a `kind`.

    Raises:
        DumpFormatError: it is no JSON, not of this form, or has a number beyond all formats; with the byte where that
            was seen.
    """
    if b"1" * (_LONGEST // _STRIDE) in content[::_STRIDE].translate(_DIGITS):
        _refuse_long_numbers(path, content)
    if any(word in content for word in _WORDS):
        # As most writers put such numbers, which takes a fraction of the time of a search for them.
        try:
            return msgspec.json.decode(_with_blank(content), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        first = error
    if isinstance(first, msgspec.ValidationError) or not _NOT_JSON.search(content):
        raise _unreadable(path, content, first) from None
    try:
        return msgspec.json.decode(_NOT_JSON.sub(rb'"\\u0000\1"', content), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # A text with such a number in it, or a real error, whose place counts in the file as it is.
    try:
        plain = json.loads(content, parse_constant=lambda name: "\0" + name)
        return msgspec.json.decode(json.dumps(plain).encode(), type=kind)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, content, error) from None


def _refuse_long_numbers(path: str, content: bytes) -> None:
    """Refuse a number that no format holds, before some commands leave it undecoded; digits in a text are none."""

    found: list[str] = []

    def check(text: str) -> None:
        if math.isinf(float(text)):
            found.append(text)

    with contextlib.suppress(ValueError, RecursionError):  # no JSON at all, which has an error of its own
        json.loads(content, parse_int=check, parse_float=check)
    if found:
        position = f"at byte {content.find(found[0].encode())} of {len(content)}"
        raise DumpFormatError(f"{path}: damaged {position}: a number of {len(found[0])} digits, beyond all formats.")


def _with_blank(content: bytes) -> bytes:
    """The numbers behind a colon and a blank as marked texts."""
    for name in (b"NaN", b"Infinity", b"-Infinity"):
        content = content.replace(b": " + name, b': "\\u0000' + name + b'"')
    return content


def _unreadable(path: str, content: bytes, error: Exception) -> DumpFormatError:
    size = len(content)
    if not content.strip():
        return DumpFormatError(f"{path}: the file is empty.")
    if isinstance(error, RecursionError):
        return DumpFormatError(f"{path}: nested too deeply to be a dump.")
    if isinstance(error, msgspec.ValidationError):
        return DumpFormatError(f"{path}: not a file of a dump: {error}.")
    if isinstance(error, json.JSONDecodeError):
        offset = len(error.doc[: error.pos].encode())
        return DumpFormatError(f"{path}: damaged at byte {offset} of {size}: {error.msg}.")
    if isinstance(error, UnicodeDecodeError):
        return DumpFormatError(f"{path}: damaged: a text that is not UTF-8 ({error.reason}).")
    found = _PLACE.search(str(error))
    if found is None:
        return DumpFormatError(f"{path}: cut off at byte {size}: {error}.")
    return DumpFormatError(f"{path}: damaged at byte {found[1]} of {size}: {_PLACE.sub('', str(error))}.")


def number(value: Any) -> Any:
    """`value`, or the number that stands behind it when it is one of the marked texts."""
    return NUMBERS.get(value, value) if type(value) is str else value


def with_numbers(value: Any) -> Any:
    """Return an entry or a record with its numbers in the place of the marked texts that stand for them."""
    if isinstance(value, dict):
        return {key: with_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_numbers(inner) for inner in value]
    return number(value)


# --- files that are cut short

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)|[{}\[\],]', re.DOTALL)
_KEY = re.compile(rb'"([^"\\]{1,300})"\s*:')
_OPENING, _CLOSING = b"{[", b"}]"


def whole_parts(content: bytes, depth: int) -> Iterator[bytes]:
    """JSON texts of what is whole of a text that ends too early, the longest first; nothing where it does not.

    Args:
        content: the text.
        depth: how deep the members are that are kept or left out whole: 1 for those of the outermost object, 2 for
            those of an object in it.
    """
    open_brackets = bytearray()
    ends: dict[int, tuple[int, bytes]] = {}
    """The end of the last whole member of each depth, and the brackets to close there."""
    begin = last_begin = 0
    """The begin of a member at `depth`, and that of the last whole one."""
    for token in _TOKEN.finditer(content):
        first = token[0][0]
        if first == ord('"'):
            if not token[1]:
                break  # The text ends inside of it.
        elif first in _OPENING:
            open_brackets.append(first)
            if len(open_brackets) == depth:
                begin = token.end()
        elif first in _CLOSING:
            if not open_brackets:
                return
            open_brackets.pop()
            level = len(open_brackets)
            if level <= depth:
                ends[level] = token.end(), _closed(open_brackets)
                last_begin = begin
        elif len(open_brackets) <= depth:
            level = len(open_brackets)
            ends[level] = token.start(), _closed(open_brackets)
            if level == depth:
                last_begin, begin = begin, token.end()
    if not open_brackets:
        return
    for end, closing in sorted(ends.values(), reverse=True):
        # Where a bracket is lost in the middle, what follows is inside of one member.
        is_one_each = max(map(_calls, (content[last_begin:end], content[end:]))) <= 1
        if closing and (depth == 1 or is_one_each):
            yield content[:end] + closing


def _closed(open_brackets: bytearray) -> bytes:
    return bytes(ord("}") if bracket == ord("{") else ord("]") for bracket in reversed(open_brackets))


def _calls(content: bytes) -> int:
    """The number of names of calls that a text has as keys."""
    return sum(parse(found[1].decode(errors="replace")) is not None for found in _KEY.finditer(content))
