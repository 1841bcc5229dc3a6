"""The key ``alert`` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from probe.common.config.fields import Location, one_of, parse_flag, quoted
from probe.common.config.keys import key
from probe.monitor.setup.settings import parse_mapping, settings_of, whole

ACTIONS = ("log", "file", "stop", "dump")
_parse_action = one_of(*ACTIONS)


def _parse_rules(value: object, location: Location) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise location.wrong(value, "a list of rules, empty for the learned ones")
    return tuple(value)


def _parse_actions(value: object, location: Location) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise location.wrong(value, f"a list of {quoted(ACTIONS)}")
    return tuple(_parse_action(each, location.item(at)) for at, each in enumerate(value))


@dataclass(frozen=True)
class AlertSettings:
    """The keys below ``alert``."""

    rules: tuple[Any, ...] = key((), _parse_rules)
    """Rules of msProbe, which only its rules can read; without any the learned rules judge."""
    dump: bool = key(False, parse_flag)
    """True if ``anomaly.json`` is wanted."""
    actions: tuple[str, ...] = key(("log", "file"), _parse_actions)
    dump_times: int = key(1, whole(1))
    """The number of dumps that are armed in a run."""
    min_history: int = key(5, whole(1))
    """Steps that a row needs before it is compared."""


def parse_alert(value: object, location: Location) -> AlertSettings:
    """The object of ``alert``."""
    return settings_of(AlertSettings, parse_mapping(value, location), location.origin, f"{location.key}.")
