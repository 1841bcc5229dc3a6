"""The configuration of the second monitor, `TrainerMonitorV2`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional

from probe.common import log
from probe.common.config.fields import Location, one_of, parse_flag, parse_path
from probe.common.config.keys import key
from probe.common.errors import MsprobeException
from probe.monitor.setup.first import Communication, parse_communication
from probe.monitor.setup.settings import (
    MonitorSettings,
    parse_eps,
    parse_mapping,
    parse_names,
    parse_ops,
    parse_ranks,
    read_settings,
    settings_of,
    whole,
    whole_or_none,
)

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


def load(path: str, content: Mapping[str, Any] | None = None) -> SecondSettings:
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
