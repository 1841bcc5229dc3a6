"""The JSON files of a dump, decoded with errors that name file and place.

msgspec is several times as fast as the standard library but knows no NaN and no infinity, which a dump may hold. A
file that has them is decoded with these numbers replaced by marked texts; `number` turns them back.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from probe.common import files
from probe.common.errors import DumpFormatError, FileCheckException

T = TypeVar("T")

NUMBERS = {"\0NaN": float("nan"), "\0Infinity": float("inf"), "\0-Infinity": float("-inf")}

# Places of a value. Inside a text this can match too; the quotes put there then end the text before a letter,
# which is no JSON, so that such a file is never read wrongly but by the slow way.
_NOT_JSON = re.compile(rb"(?<=[:,\[\s])(-?Infinity|NaN)(?=[\s,\]}])")
_WORDS = (b"NaN", b"Infinity")
_PLACE = re.compile(r" \(byte (\d+)\)")


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
        DumpFormatError: it is no JSON, or not of this form; with the byte where that was seen.
    """
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
