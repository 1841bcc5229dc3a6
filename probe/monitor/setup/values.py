"""Values of the configuration of a monitor, checked one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from probe.common import log
from probe.common.config.fields import Location
from probe.common.config.keys import keys_of
from probe.common.dump.nearest_names import nearest

_Settings = TypeVar("_Settings")
MOST = 10**12
"""No step of a training has a larger number."""


def settings_of(kind: type[_Settings], content: Mapping[str, Any], origin: str, above: str = "") -> _Settings:
    """The settings in an object of a configuration file; an unknown key is a warning with the nearest one.

    Args:
        kind: A dataclass whose fields were made with `probe.common.config.keys.key`.
        content: The object.
        origin: The file, for messages.
        above: What stands before the keys in messages, such as ``monitors.module.``.

    Raises:
        MsprobeException: a value is wrong; the message names key, value and what is allowed.
    """
    table = keys_of(kind)
    found = {}
    for name, value in content.items():
        known = table.get(name)
        if known is None:
            near = nearest(name, table)
            hint = f'; did you mean "{near[0]}"?' if near else f"; known keys: {', '.join(sorted(table))}."
            log.warning(f'{origin}: "{above}{name}" is not a key of a monitor and has no effect{hint}')
            continue
        found[known.attribute] = known.parse(value, Location(origin, f"{above}{name}"))
    return kind(**found)


def whole(least: int, most: int = MOST) -> Callable[[object, Location], int]:
    """Make the parser of whole numbers."""
    upto = "" if most == MOST else f" to {most}"

    def parse(value: object, location: Location) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise location.wrong(value, f"whole numbers from {least}{upto}")

    return parse


def whole_or_none(least: int) -> Callable[[object, Location], int | None]:
    """Make the parser of whole numbers, and of null."""
    parse_number = whole(least)

    def parse(value: object, location: Location) -> int | None:
        return None if value is None else parse_number(value, location)

    return parse


def parse_eps(value: object, location: Location) -> float:
    """A number that is not negative."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise location.wrong(value, "a number from 0")


def parse_mapping(value: object, location: Location) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise location.wrong(value, "an object, {}")
    return value


def parse_names(value: object, location: Location) -> tuple[str, ...]:
    """A list of texts, the empty one included."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise location.wrong(value, "a list of texts")
    return tuple(value)


def parse_ranks(value: object, location: Location) -> tuple[int, ...]:
    """A rank or a list of them; all if empty."""
    values = [value] if isinstance(value, int) and not isinstance(value, bool) else value
    if value is None:
        return ()
    parse = whole(0)
    if not isinstance(values, list):
        raise location.wrong(value, "a list of ranks, whole numbers from 0")
    return tuple(parse(each, location.item(at)) for at, each in enumerate(values))
