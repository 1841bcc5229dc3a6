"""Read a JSON file that somebody else wrote into plain objects, and name what is wrong with it.

Whatever the file holds, the result is a dictionary or a `FileCheckException`: sizes and numbers are checked
before they cost anything, because the file may be half written, fetched from elsewhere or no JSON at all. Python's json
reads it and not msgspec, because its errors have a line and a column, and it tells of keys that are given twice.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter

from probe.common import log
from probe.common.errors import ConfigSyntaxError, FileCheckException

MAX_BYTES = 10 * 1024 * 1024
"""Bytes of a configuration; a guess: they have some kilobytes."""
# Longer integers are no setting of ours, and converting them takes quadratic time on older Pythons.
_LONGEST_INTEGER = 100


def read_object(path: str) -> dict[str, object]:
    """The JSON object in the file `path`.

    Raises:
        FileCheckException: the name does not end in ``.json``, or there is no regular file of that name.
        ConfigSyntaxError: the file is too large, or its text is not one JSON object.
    """
    text = _decode(path, _read_bytes(path))
    repeated: list[str] = []

    def as_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.extend(key for key, count in counts.items() if count > 1)
        return result

    try:
        content = json.loads(text, object_pairs_hook=as_object, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise ConfigSyntaxError(
            f"{path}: line {error.lineno}, column {error.colno} is not valid JSON ({error.msg})."
        ) from None
    except RecursionError:
        raise ConfigSyntaxError(f"{path}: lists and objects are nested too deeply to be a configuration.") from None
    except ValueError as error:
        raise ConfigSyntaxError(f"{path}: {error}.") from None
    if not isinstance(content, dict):
        start = len(text) - len(text.lstrip())
        line, column = _position(text[:start])
        raise ConfigSyntaxError(
            f'{path}: line {line}, column {column} does not begin an object; the file must look like {{"key": value}}.'
        )
    if repeated:
        key = json.dumps(repeated[0][:60])
        log.warning(f"{path}: {key} is given more than once; the last value counts.", once="config-repeated-key")
    return content


def _read_bytes(path: str) -> bytes:
    if not path.endswith(".json"):
        raise FileCheckException(f"{path}: the name of a configuration file must end in .json.")
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise FileCheckException(f"{path}: the configuration file is a symbolic link; give the file it points to.")
        # Opening a pipe would wait for its writer, so the kind is looked at first.
        if not stat.S_ISREG(mode):
            raise FileCheckException(f"{path}: the configuration file is not a regular file.")
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FileCheckException(f"{path}: there is no such configuration file.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileCheckException(f"{path}: the configuration file cannot be read ({reason}).") from None
    if len(data) > MAX_BYTES:
        raise ConfigSyntaxError(f"{path}: the configuration file is larger than {MAX_BYTES // 1024**2} MiB.")
    return data


def _decode(path: str, data: bytes) -> str:
    try:
        # Editors on Windows put a byte order mark in front.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _position(bytes(error.object[: error.start]).decode("utf-8", "replace"))
        raise ConfigSyntaxError(f"{path}: line {line}, column {column} is not UTF-8 text.") from None


def _position(before: str) -> tuple[int, int]:
    """Line and column, from 1, of what follows `before`."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"a number of {len(text)} digits is too long to be a setting")
    return int(text)
