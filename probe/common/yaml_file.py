"""YAML files that somebody else wrote, read into plain objects within bounds that are checked before anything is made.

A file of some hundred bytes can stand for any amount of memory: an alias repeats what its anchor holds, and `<<`
copies it. Nesting is bounded too, since the compiled loader calls itself for each level, and ends the process when
the stack is full.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from probe.common import files
from probe.common.errors import FileCheckException, MsprobeException

MAX_BYTES = 64 << 20
MAX_DEPTH = 100
MAX_PARTS = 1_000_000
"""Values and keys, each counted as often as aliases repeat it, and once more for every 64 of its characters."""
_CHARACTERS_IN_PART = 64
_LONGEST_NUMBER = 100
"""Characters: longer ones take quadratic time, or cannot be shown."""

_LONGEST_REASON = 400


def load_yaml(path: str) -> Any:
    """The content of a YAML file, read without making objects of it.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it is no YAML, or more than one of the bounds.
    """
    # Most comparisons need none, and to import this takes as long as a small one.
    import yaml

    try:
        with files.open_for_reading(path) as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileCheckException(f"{path}: cannot be read: {reason}.") from None
    if len(content) > MAX_BYTES:
        raise MsprobeException(f"{path}: larger than {MAX_BYTES >> 20} MiB, more than such a file may have.")
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


def _event_kinds() -> Any:
    from yaml import events

    return events


def _check(path: str, events: Iterable[Any]) -> None:
    """Count what the file stands for, without making it."""
    kinds: Any = _event_kinds()

    total = 0
    sizes: dict[str, int] = {}
    open_collections: list[tuple[str | None, int]] = []
    for event in events:
        if isinstance(event, kinds.ScalarEvent):
            size = 1 + len(event.value) // _CHARACTERS_IN_PART
            total += size
            if event.anchor is not None:
                sizes[event.anchor] = size
        elif isinstance(event, kinds.CollectionStartEvent):
            # Until its end is seen, an alias of it is one of something that holds itself.
            if event.anchor is not None:
                sizes.pop(event.anchor, None)
            open_collections.append((event.anchor, total))
            total += 1
        elif isinstance(event, kinds.CollectionEndEvent):
            anchor, before = open_collections.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, kinds.AliasEvent):
            if event.anchor not in sizes:
                line = event.start_mark.line + 1
                raise MsprobeException(f"{path}: line {line}: *{event.anchor[:80]} stands for nothing before it.")
            total += sizes[event.anchor]
        if total > MAX_PARTS or len(open_collections) > MAX_DEPTH:
            line = event.start_mark.line + 1
            what = (
                f"nested more than {MAX_DEPTH} levels deep"
                if len(open_collections) > MAX_DEPTH
                else f"stands for more than {MAX_PARTS} values, counting what aliases repeat"
            )
            raise MsprobeException(f"{path}: line {line}: {what}; no mapping needs that.")
