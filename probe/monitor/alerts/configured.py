"""The judge and the actions that ``alert`` of a configuration stands for, and its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from probe.common.dump.nearest_names import nearest
from probe.common.errors import MsprobeException
from probe.common.show import show
from probe.monitor.alerts.actions import ACTIONS, ActionSettings
from probe.monitor.alerts.learned import MIN_HISTORY, LearnedRules
from probe.monitor.alerts.named import EXACT, NAMES, TURBULENCE, Caution, NamedRule, NamedRules
from probe.monitor.alerts.rows import Judge

KEYS = ("rules", "dump", "actions", "dump_times", "min_history")


@dataclass(frozen=True)
class AlertSettings:
    """The key ``alert``, checked."""

    named: tuple[NamedRule, ...] = ()
    """Rules of msProbe; without any the learned rules judge."""
    writes_anomalies: bool = False
    """True if ``anomaly.json`` is wanted."""
    actions: ActionSettings = field(default_factory=ActionSettings)
    min_history: int = MIN_HISTORY

    def judge(self, rank: int, as_msprobe: bool = False) -> Judge:
        """The judge of a rank; with `as_msprobe` every value is judged as msProbe does."""
        if self.named:
            return NamedRules(self.named, rank, EXACT if as_msprobe else Caution(self.min_history))
        return LearnedRules(rank, self.min_history)


def alert_settings(value: Any, key: str = "alert") -> Optional[AlertSettings]:  # noqa: UP045
    """The settings of the key ``alert``; ``None`` without it: nothing is judged.

    Raises:
        MsprobeException: a value has a wrong type or is out of range; the message names the key.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise MsprobeException(f'"{key}" is {show(value)}; allowed: an object with {", ".join(KEYS)}.')
    rules = value.get("rules", [])
    if not isinstance(rules, list):
        raise MsprobeException(f'"{key}.rules" is {show(rules)}; allowed: a list of rules, empty for the learned ones.')
    named = tuple(_rule(each, f"{key}.rules[{index}]") for index, each in enumerate(rules))
    writes = value.get("dump", False)
    if not isinstance(writes, bool):
        raise MsprobeException(f'"{key}.dump" is {show(writes)}; allowed: true, false.')
    names = _names(value.get("actions", ["log", "file"]), f"{key}.actions")
    dumps = _count(value.get("dump_times", 1), f"{key}.dump_times", 1)
    history = _count(value.get("min_history", MIN_HISTORY), f"{key}.min_history", 1)
    return AlertSettings(named, writes, ActionSettings(names, dumps), history)


def unknown_keys(value: Any, key: str = "alert") -> list[str]:
    """A sentence for each key that is not known, with the nearest one; for a warning."""
    if not isinstance(value, Mapping):
        return []
    found = []
    for name in value:
        if name not in KEYS:
            near = nearest(str(name), KEYS)
            hint = f"; did you mean {show(near[0])}?" if near else ""
            found.append(f'unknown key "{key}.{name}"{hint}')
    return found


def _rule(entry: Any, key: str) -> NamedRule:
    allowed = ", ".join(f'"{name}"' for name in NAMES)
    if isinstance(entry, str):
        entry = {"rule_name": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("rule_name"), str):
        raise MsprobeException(f'"{key}" is {show(entry)}; allowed: an object with "rule_name" and "args", or a name.')
    name, args = entry["rule_name"], entry.get("args", {})
    if name not in NAMES:
        raise MsprobeException(f'"{key}.rule_name" is {show(name)}; allowed: {allowed}.')
    if not isinstance(args, Mapping):
        raise MsprobeException(f'"{key}.args" is {show(args)}; allowed: an object with "threshold".')
    threshold = args.get("threshold")
    is_number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool) and threshold >= 0
    if threshold is None and name == TURBULENCE:
        raise MsprobeException(f'"{key}.args.threshold" is missing; {TURBULENCE} needs a number of 0 or more.')
    if threshold is not None and not is_number:
        raise MsprobeException(f'"{key}.args.threshold" is {show(threshold)}; allowed: a number of 0 or more.')
    return NamedRule(name, None if threshold is None else float(threshold))


def _names(value: Any, key: str) -> tuple[str, ...]:
    allowed = ", ".join(f'"{name}"' for name in ACTIONS)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise MsprobeException(f'"{key}" is {show(value)}; allowed: a list of {allowed}.')
    for each in value:
        if each not in ACTIONS:
            raise MsprobeException(f'"{key}" has {show(each)}; allowed: {allowed}.')
    return tuple(value)


def _count(value: Any, key: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MsprobeException(f'"{key}" is {show(value)}; allowed: an integer of {least} or more.')
    return value
