"""YAML and JSON files that somebody else wrote, read into plain objects, with what is wrong with them named."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

from probe.common import files, log
from probe.common.containers import MOST_LEVELS
from probe.common.errors import ConfigSyntaxError, FileCheckException, MsprobeException

MAX_YAML_BYTES = 64 << 20
"""Bytes of a file; a guess: mappings have some kilobytes."""
MAX_VALUES = 1_000_000
"""The largest number of values and keys together."""
_LONGEST_NUMBER = 100
"""Characters: longer ones take quadratic time, or cannot be shown."""

_LONGEST_REASON = 400
"""Characters of a parser's message that are shown; a guess."""


def load_yaml(path: str) -> Any:
    """The content of a YAML file, read without making objects of it.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it is no YAML, or more than one of the bounds.
    """
    try:
        with files.open_for_reading(path) as stream:
            content = stream.read(MAX_YAML_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileCheckException(f"{path}: cannot be read: {reason}.") from None
    if len(content) > MAX_YAML_BYTES:
        raise MsprobeException(f"{path}: larger than {MAX_YAML_BYTES >> 20} MiB, more than such a file may have.")
    return parse_yaml(path, content)


def parse_yaml(path: str, content: bytes) -> Any:
    """The value of YAML that is part of the file at `path`; raises as `load_yaml` does."""
    # Most comparisons need none, and to import this takes as long as a small one.
    import yaml

    try:
        text = content.decode("utf-8-sig")
        loader = _loader()
        _check(path, yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except (MsprobeException, MemoryError):
        raise
    except Exception as error:
        # A value that is not what its tag promises gives whatever its constructor happens to raise: ValueError for a
        # date, IndexError for an integer, KeyError for a boolean, AttributeError for a timestamp.
        reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
        raise MsprobeException(f"{path}: not valid YAML: {reason}.") from None


@cache
def _loader() -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # both are safe
        def construct_integer(self, node: Any) -> int:
            if len(node.value) > _LONGEST_NUMBER:
                line = node.start_mark.line + 1
                raise ValueError(f"line {line}: a number of {len(node.value)} digits is too long")
            number: int = self.construct_yaml_int(node)
            return number

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_integer)
    return Loader


def _check(path: str, events: Iterable[Any]) -> None:
    """Look at the file piece by piece, before anything is made of it."""
    import yaml

    depth = values = 0
    for event in events:
        wrong = ""
        if isinstance(event, yaml.ScalarEvent):
            values += 1
        elif isinstance(event, yaml.CollectionStartEvent):
            values += 1
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            wrong = f"*{(event.anchor or '')[:80]} repeats another part of the file; write it out"
        if depth > MOST_LEVELS:
            wrong = f"nested more than {MOST_LEVELS} levels deep; no mapping needs that"
        elif values > MAX_VALUES:
            wrong = f"more than {MAX_VALUES} values; no mapping needs that"
        if wrong:
            raise MsprobeException(f"{path}: line {event.start_mark.line + 1}: {wrong}.")


# --- json file


MAX_JSON_BYTES = 10 * 1024 * 1024
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
            data = stream.read(MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        raise FileCheckException(f"{path}: there is no such configuration file.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileCheckException(f"{path}: the configuration file cannot be read ({reason}).") from None
    if len(data) > MAX_JSON_BYTES:
        raise ConfigSyntaxError(f"{path}: the configuration file is larger than {MAX_JSON_BYTES // 1024**2} MiB.")
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
