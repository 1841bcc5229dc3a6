"""YAML files that somebody else wrote, read into plain objects within bounds that are checked before anything is made.

With aliases a file of some hundred bytes can stand for any amount of memory, so that they are refused. Nesting is
bounded too, since the compiled loader calls itself for each level, and ends the process when the stack is full; and
since it does so inside of compiled code, both are looked for in a pass of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from probe.common import files
from probe.common.containers import MOST_LEVELS
from probe.common.errors import FileCheckException, MsprobeException

MAX_BYTES = 64 << 20
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
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileCheckException(f"{path}: cannot be read: {reason}.") from None
    if len(content) > MAX_BYTES:
        raise MsprobeException(f"{path}: larger than {MAX_BYTES >> 20} MiB, more than such a file may have.")
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
