"""The properties of a key of the configuration file; the table of all keys are the fields of `Config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from probe.common.config.fields import Location

T = TypeVar("T")


def _always_used(config: Any) -> str:
    return ""


@dataclass(frozen=True)
class Key:
    """One key.

    Args:
        parse: Checks and converts the value that stands in the file.
        tasks: The tasks in whose section the key stands; empty for a key at the top.
        unused: Why the key has no effect in a given configuration; an empty text where it has one.
        name: The key in the file; where it is empty, the name of the field.
        attribute: The name of the field.
        default: The value where the file has no such key.
    """

    parse: Callable[[object, Location], Any]
    tasks: tuple[str, ...]
    unused: Callable[[Any], str]
    name: str
    attribute: str = ""
    default: Any = None


def key(
    default: T,
    parse: Callable[[object, Location], T],
    tasks: tuple[str, ...] = (),
    unused: Callable[[Any], str] = _always_used,
    name: str = "",
) -> T:
    """The field of a dataclass that one key of the file sets; see `Key`."""
    metadata = {"key": Key(parse, tasks, unused, name)}
    return dataclasses.field(default=default, metadata=metadata)


def keys_of(config: type[Any]) -> dict[str, Key]:
    """The keys of a dataclass whose fields were made with `key`, by their names in the file."""
    table = {}
    for field in dataclasses.fields(config):
        entry: Key = field.metadata["key"]
        name = entry.name or field.name
        table[name] = dataclasses.replace(entry, name=name, attribute=field.name, default=field.default)
    return table
