"""The configuration of a monitor: the keys that both monitors have, and the checks of values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from probe.backends.protocol import OPS
from probe.common import log
from probe.common.config.fields import Location, one_of, quoted
from probe.common.config.json_file import read_object
from probe.common.config.keys import key, keys_of
from probe.common.dump.nearest_names import nearest
from probe.common.errors import MsprobeException

PROBE, MSPROBE = "probe", "msprobe"
RULES = "MSPROBE_RULES"
OPS_OF_MSPROBE = ("min", "max", "mean", "norm", "zeros", "nans", "id")
MOST = 10**12
"""No step of a training has a larger number."""
_Settings = TypeVar("_Settings")
_Monitor = TypeVar("_Monitor", bound="MonitorSettings")


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


def parse_ops(value: object, location: Location) -> tuple[str, ...]:
    """A list of names; whether they are known is asked later, since it depends on whose rules hold."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise location.wrong(value, f"a list of {quoted(OPS)}")
    return tuple(dict.fromkeys(value))


@dataclass(frozen=True)
class MonitorSettings:
    """The keys that both monitors have."""

    start_step: int = key(0, whole(0))
    step_interval: int = key(1, whole(1))
    collect_times: int = key(MOST, whole(0))
    step_count_per_record: int = key(1, whole(1))
    rules: str = key("", one_of(PROBE, MSPROBE))

    @property
    def as_msprobe(self) -> bool:
        """True if rows, rules and files are those of msProbe."""
        return self.rules == MSPROBE

    def checked_ops(self, ops: Sequence[str], name: str, origin: str, default: Sequence[str]) -> tuple[str, ...]:
        """Statistics, or the default if none is named; what msProbe does not know is left out where its rules hold.

        Raises:
            MsprobeException: a name is unknown.
        """
        known = OPS_OF_MSPROBE if self.as_msprobe else OPS
        unknown = [each for each in ops if each not in known]
        if unknown and not self.as_msprobe:
            raise MsprobeException(f'{origin}: "{name}" has "{unknown[0]}"; allowed: {quoted(known)}.')
        if unknown:
            log.warning(f'{origin}: "{name}" has {quoted(unknown)}, which msProbe does not know; left out.')
        return tuple(each for each in ops if each in known) or tuple(default)


def read_settings(kind: type[_Monitor], path: str, content: Mapping[str, Any] | None) -> _Monitor:
    """Read the configuration of a monitor, whose rules the environment chooses where the file does not.

    Args:
        kind: The settings.
        path: The file.
        content: What the file holds, where it was read already.

    Raises:
        MsprobeException: the file cannot be read, a value is wrong, or there are no such rules.
    """
    settings = settings_of(kind, read_object(path) if content is None else content, path)
    if settings.rules:
        return settings
    value = os.environ.get(RULES) or PROBE
    if value not in (PROBE, MSPROBE, "msprobe-documented"):
        raise MsprobeException(f"{RULES} is {value!r}; allowed: {PROBE}, {MSPROBE}.")
    # The third is a name of earlier releases, which stands for the default.
    return replace(settings, rules=MSPROBE if value == MSPROBE else PROBE)
