"""The configurations of the monitors: the keys that both have, and those of `TrainerMon` and `TrainerMonitorV2`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional, TypeVar

from probe.backends.protocol import OPS
from probe.common import log
from probe.common.config.fields import Location, key, keys_of, one_of, parse_flag, parse_path, quoted
from probe.common.data_files import read_object
from probe.common.dump.naming import nearest
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
        kind: A dataclass whose fields were made with `probe.common.config.fields.key`.
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


# --- alert


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


# --- first


HOOKS = ("linear_hook", "attention_hook", "moe_router_weight_hook", "moe_router_logit_hook")
_OF_ROUTERS = HOOKS[2:]
FORMATS = ("csv", "tensorboard", "api")
_SELECTIONS = ("input", "output", "input_grad", "output_grad")
_SELECTION = re.compile(r"(tensor|(tuple|list)\[\d+\])(:\d+)?")
_DIGITS = 6
"""Decimals in files if the configuration does not say; those of msProbe."""
_TIME_LENGTH = len("Nov27_14-20-00")


@dataclass(frozen=True)
class Communication:
    """``cc_distribution``."""

    enable: bool = key(False, parse_flag)
    cc_codeline: tuple[str, ...] = key((), parse_names)
    cc_pre_hook: bool = key(False, parse_flag)
    cc_log_only: bool = key(False, parse_flag)


def parse_communication(value: object, location: Location) -> Communication:
    """The object of ``cc_distribution``."""
    return settings_of(Communication, parse_mapping(value, location), location.origin, f"{location.key}.")


def _parse_targets(value: object, location: Location) -> dict[str, Any]:
    targets = parse_mapping(value, location)
    for name, selection in targets.items():
        inner = Location(location.origin, f"{location.key}.{name}")
        if not isinstance(selection, dict) or set(selection) - set(_SELECTIONS):
            raise inner.wrong(selection, f"{{}}, or an object with {quoted(_SELECTIONS)}")
        for role, text in selection.items():
            if not isinstance(text, str) or not _SELECTION.fullmatch(text):
                place = Location(location.origin, f"{inner.key}.{role}")
                raise place.wrong(text, '"tensor", or "tuple[2]:0": the number of tensors and the index of one')
    return targets


def selected_index(text: str) -> Optional[int]:  # noqa: UP045
    """The index of the tensor that ``tuple[2]:0`` selects; ``None`` for all of them.

    Example:
        >>> selected_index("tuple[2]:1"), selected_index("tensor")
        (1, None)
    """
    index = text.partition(":")[2]
    return int(index) if index else None


def _parse_l2(value: object, location: Location) -> dict[str, tuple[str, ...]]:
    targets = parse_mapping(value, location)
    for hook in targets:
        if hook not in HOOKS:
            raise Location(location.origin, f"{location.key}.{hook}").wrong(targets[hook], f"the hooks {quoted(HOOKS)}")
    return {
        hook: parse_names(names, Location(location.origin, f"{location.key}.{hook}")) for hook, names in targets.items()
    }


def _parse_times(value: object, location: Location) -> tuple[str, ...]:
    times = parse_names(value, location)
    if len(times) not in (0, 2) or any(len(each) != _TIME_LENGTH for each in times):
        raise location.wrong(value, 'an empty list, or two times as "Nov27_14-20-00"')
    return times


_NO_COMMUNICATION = Communication()


@dataclass(frozen=True)
class FirstSettings(MonitorSettings):
    """The keys of the file, all of them checked."""

    targets: Optional[dict[str, Any]] = key(None, _parse_targets)  # noqa: RUF009, UP045
    xy_distribution: bool = key(False, parse_flag)
    all_xy: bool = key(False, parse_flag)
    forward_only: bool = key(False, parse_flag)
    backward_only: bool = key(False, parse_flag)
    wg_distribution: bool = key(False, parse_flag)
    monitor_mbs_grad: bool = key(False, parse_flag)
    mv_distribution: bool = key(False, parse_flag)
    param_distribution: bool = key(False, parse_flag)
    ur_distribution: bool = key(False, parse_flag)
    mg_direction: bool = key(False, parse_flag)
    cc_distribution: Communication = key(_NO_COMMUNICATION, parse_communication)  # noqa: RUF009
    alert: Optional[AlertSettings] = key(None, parse_alert)  # noqa: RUF009, UP045
    l2_targets: Optional[dict[str, tuple[str, ...]]] = key(None, _parse_l2)  # noqa: RUF009, UP045
    recording_l2_features: bool = key(False, parse_flag)
    sa_order: str = key("s,b,h,d", one_of("s,b,h,d", "b,s,h,d"))
    ops: tuple[str, ...] = key((), parse_ops)
    eps: float = key(1e-8, parse_eps)
    ndigits: Optional[int] = key(None, whole_or_none(1))  # noqa: UP045
    format: str = key("csv", one_of(*FORMATS))
    module_ranks: tuple[int, ...] = key((), parse_ranks)
    print_struct: bool = key(False, parse_flag)
    stack_info: bool = key(False, parse_flag)
    append_output: tuple[str, ...] = key((), _parse_times)
    squash_name: bool = key(False, parse_flag)
    dynamic_on: bool = key(False, parse_flag)
    grad_sign: bool = key(False, parse_flag)
    grad_direction: bool = key(False, parse_flag)
    exit: bool = key(False, parse_flag)

    @property
    def ends_after_communication(self) -> bool:
        """True if the training ends after the step whose communication was logged."""
        communication = self.cc_distribution
        return communication.enable and communication.cc_log_only and (self.exit or self.as_msprobe)

    def without_effect(self) -> Iterator[str]:
        """A sentence for each setting that changes nothing together with the others."""
        if self.forward_only and self.backward_only and self.xy_distribution:
            yield '"forward_only" and "backward_only" are both true; no activations are collected.'
        if self.squash_name:
            yield '"squash_name" has no effect; names are written in full.'
        if self.monitor_mbs_grad and not self.wg_distribution:
            yield '"monitor_mbs_grad" has no effect without "wg_distribution".'
        if self.grad_direction and self.as_msprobe:
            yield '"grad_direction" has no effect by the rules of msProbe.'
        if self.l2_targets and not self.recording_l2_features:
            yield '"l2_targets" has no effect without "recording_l2_features".'
        if self.recording_l2_features and not self.l2_targets:
            yield '"recording_l2_features" has no effect without "l2_targets".'
        for hook in _OF_ROUTERS:
            if self.as_msprobe and hook in (self.l2_targets or {}):
                yield f'"l2_targets.{hook}" has no effect by the rules of msProbe.'
            elif not (self.l2_targets or {}).get(hook, ("any",)):
                yield f'"l2_targets.{hook}" is empty and has no effect; it needs the names of routers.'
        if self.cc_distribution != Communication() and not self.cc_distribution.enable:
            yield '"cc_distribution" has no effect without "enable": true.'


def load_first(path: str, content: Mapping[str, Any] | None = None) -> FirstSettings:
    """Read and check the configuration file.

    Args:
        path: The file.
        content: What the file holds, where it was read already.

    Raises:
        MsprobeException: the file cannot be read, or a value is wrong.
    """
    settings = read_settings(FirstSettings, path, content)
    ops = settings.checked_ops(settings.ops, "ops", path, ("norm",))
    settings = replace(settings, ops=ops)
    if not settings.targets:
        settings = replace(settings, all_xy=True)
    if settings.ndigits is None and settings.as_msprobe:
        settings = replace(settings, ndigits=_DIGITS)
    for sentence in settings.without_effect():
        log.warning(f"{path}: {sentence}")
    return settings


# --- second


FRAMEWORKS = {"pytorch": "torch", "pt": "torch", "torch": "torch", "mindspore": "mindspore", "ms": "mindspore"}
MONITORS = ("module", "weight_grad", "optimizer", "param", "cc")
_DEFAULT_OPS = ("min", "max", "mean", "norm", "nans")


def _parse_interval(value: object, location: Location) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        log.warning(f"{location.describe(value)}; 1 is used.")
        return 1
    return whole(1)(value, location)


@dataclass(frozen=True)
class OneMonitor:
    """The keys below ``monitors.<name>``."""

    enabled: bool = key(False, parse_flag)
    ops: tuple[str, ...] = key((), parse_ops)
    eps: float = key(1e-8, parse_eps)
    targets: tuple[str, ...] = key((), parse_names)
    monitor_mbs_grad: bool = key(False, parse_flag)
    micro_batch_number: Optional[int] = key(None, whole_or_none(0))  # noqa: UP045
    grad_acc_steps: Optional[int] = key(None, whole_or_none(0))  # noqa: UP045
    mv_distribution: bool = key(True, parse_flag)
    param_distribution: bool = key(True, parse_flag)
    cc_codeline: tuple[str, ...] = key((), parse_names)
    cc_log_only: bool = key(False, parse_flag)
    cc_pre_hook: bool = key(False, parse_flag)
    module_ranks: tuple[int, ...] = key((), parse_ranks)
    cc_distribution: Optional[Communication] = key(None, parse_communication)  # noqa: RUF009, UP045


def _parse_monitors(value: object, location: Location) -> dict[str, OneMonitor]:
    found = {}
    for name, content in parse_mapping(value, location).items():
        if name not in MONITORS:
            log.warning(f'{location.origin}: "{location.key}.{name}" is no monitor; known: {", ".join(MONITORS)}.')
            continue
        inner = Location(location.origin, f"{location.key}.{name}")
        found[name] = settings_of(OneMonitor, parse_mapping(content, inner), location.origin, f"{inner.key}.")
        if name == "module" and "enabled" not in content:
            found[name] = replace(found[name], enabled=True)
    return found


@dataclass(frozen=True)
class SecondSettings(MonitorSettings):
    """The keys of the file, all of them checked."""

    framework: str = key("pytorch", one_of(*FRAMEWORKS))
    output_dir: str = key("./", parse_path)
    format: str = key("csv", one_of("csv"))
    async_write: bool = key(False, parse_flag)
    rank: tuple[int, ...] = key((), parse_ranks)
    stop_step: Optional[int] = key(None, whole_or_none(0))  # noqa: UP045
    step_interval: int = key(1, _parse_interval)
    patch_optimizer_step: bool = key(True, parse_flag)
    monitors: Optional[dict[str, OneMonitor]] = key(None, _parse_monitors)  # noqa: RUF009, UP045

    def monitor(self, name: str) -> OneMonitor:
        """The settings of one monitor; the one of modules is enabled where nothing is said."""
        return (self.monitors or {}).get(name) or OneMonitor(enabled=name == "module", ops=_DEFAULT_OPS)


def load_second(path: str, content: Mapping[str, Any] | None = None) -> SecondSettings:
    """Read and check the configuration file.

    Raises:
        MsprobeException: the file cannot be read, or a value is wrong.
    """
    settings = read_settings(SecondSettings, path, content)
    if not os.path.isdir(settings.output_dir):
        where = Location(path, "output_dir")
        raise MsprobeException(f"{where.describe(settings.output_dir)}; allowed: the path of an existing folder.")
    monitors = {}
    for name, each in (settings.monitors or {}).items():
        ops = settings.checked_ops(each.ops, f"monitors.{name}.ops", path, _DEFAULT_OPS)
        monitors[name] = replace(each, ops=ops)
    return replace(settings, monitors=monitors)
