"""The configuration of the first monitor, `TrainerMon`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional

from probe.common import log
from probe.common.config.fields import Location, one_of, parse_flag, quoted
from probe.common.config.keys import key
from probe.monitor.setup.alert import AlertSettings, parse_alert
from probe.monitor.setup.settings import (
    MonitorSettings,
    parse_eps,
    parse_mapping,
    parse_names,
    parse_ops,
    parse_ranks,
    read_settings,
    settings_of,
    whole_or_none,
)

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


def load(path: str, content: Mapping[str, Any] | None = None) -> FirstSettings:
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
