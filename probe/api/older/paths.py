"""The module paths of msProbe's releases under which scripts import, in one table; none of them is a file here.

A path is served when a script imports it, and a name is looked up when it is asked for: nothing else is imported.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PYTORCH, _MINDSPORE, _SAVED = "probe.api.pytorch", "probe.api.mindspore", "probe.api.rollouts"
_OLDER, _CHECKER = "probe.api.older.functions", "probe.api.config_checker"
_CSV2TB = "probe.monitor.converting.tensorboard"
_GRADIENTS, _SECOND = "probe.api.monitoring.grad_comparator", "probe.api.monitoring.second"
_COMPARES = {"compare": _OLDER, "compare_distributed": _OLDER}

PATHS: dict[str, dict[str, str]] = {
    "msprobe.core.compare": _COMPARES,
    "msprobe.core.config_check": {"ConfigChecker": _CHECKER},
    "msprobe.core.config_check.config_checker": {"ConfigChecker": _CHECKER},
    "msprobe.core.grad_probe": {"GradComparator": _GRADIENTS},
    "msprobe.core.grad_probe.grad_compare": {"GradComparator": _GRADIENTS},
    "msprobe.core.monitor.csv2db": {"CSV2DBConfig": _OLDER, "csv2db": _OLDER},
    "msprobe.core.monitor.csv2tb": {"csv2tensorboard_by_step": _CSV2TB},
    "msprobe.core.monitor_v2": {"TrainerMonitorV2": _SECOND},
    "msprobe.core.monitor_v2.trainer": {"TrainerMonitorV2": _SECOND},
    "msprobe.core.single_save": {
        "SingleComparator": f"{_SAVED}.single_comparator", "SingleSave": f"{_SAVED}.single_save",
    },
    "msprobe.core.single_save.single_comparator": {"SingleComparator": f"{_SAVED}.single_comparator"},
    "msprobe.core.single_save.single_saver": {"SingleSave": f"{_SAVED}.single_save"},
    "msprobe.mindspore.common": {"MsprobeInitStep": _MINDSPORE, "MsprobeStep": _MINDSPORE, "seed_all": _MINDSPORE},
    "msprobe.mindspore.common.utils": {
        "MsprobeInitStep": _MINDSPORE, "MsprobeStep": _MINDSPORE, "seed_all": _MINDSPORE,
    },
    "msprobe.mindspore.compare": _COMPARES,
    "msprobe.mindspore.compare.distributed_compare": _COMPARES,
    "msprobe.mindspore.debugger": {"PrecisionDebugger": _MINDSPORE},
    "msprobe.mindspore.debugger.precision_debugger": {"PrecisionDebugger": _MINDSPORE},
    "msprobe.mindspore.monitor": {"TrainerMon": _MINDSPORE},
    "msprobe.mindspore.monitor.module_hook": {"TrainerMon": _MINDSPORE},
    "msprobe.pytorch.common": {"seed_all": _PYTORCH},
    "msprobe.pytorch.common.utils": {"seed_all": _PYTORCH},
    "msprobe.pytorch.compare": _COMPARES,
    "msprobe.pytorch.compare.distributed_compare": _COMPARES,
    "msprobe.pytorch.compare.pt_compare": _COMPARES,
    "msprobe.pytorch.debugger": {"PrecisionDebugger": _PYTORCH},
    "msprobe.pytorch.debugger.precision_debugger": {"PrecisionDebugger": _PYTORCH},
    "msprobe.pytorch.integrations": {
        "MsprobeLightningCallback": "probe.api.integrations", "MsprobeTrainerCallback": "probe.api.integrations",
    },
    "msprobe.pytorch.monitor": {"TrainerMon": _PYTORCH},
    "msprobe.pytorch.monitor.csv2tb": {"csv2tensorboard_by_step": _CSV2TB},
    "msprobe.pytorch.monitor.module_hook": {"TrainerMon": _PYTORCH},
    "msprobe.pytorch.online_dispatch": {"PtdbgDispatch": _PYTORCH},
}  # fmt: skip
"""The names below each path, and the module that each is in."""


def serve() -> OldPaths:
    """Let Python find the paths of the table from now on."""
    finder = OldPaths()
    sys.meta_path.append(finder)
    return finder


class OldPath(ModuleType):
    """A module of the table.

    It can be called: ``msprobe.pytorch.compare`` is a function in older scripts, and modules are imported below it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, f"The names that scripts import from ``{name}``.")
        self.__all__ = sorted(PATHS[name])

    def __getattr__(self, name: str) -> Any:
        if name not in PATHS[self.__name__]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(PATHS[self.__name__][name]), name)

    def __dir__(self) -> list[str]:
        return self.__all__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class OldPaths(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the paths of the table; it is asked for what is no file below ``msprobe``."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in PATHS:
            return ModuleSpec(name, self, is_package=True)
        parent, _, last = name.rpartition(".")
        # A lookup of a program that is run has no name that a script would import.
        if name.startswith("msprobe.") and not last.startswith("_"):
            raise ModuleNotFoundError(f"{parent} has no {last!r}; it has {', '.join(_names_in(parent))}.", name=parent)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return OldPath(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _names_in(path: str) -> list[str]:
    """The names and modules that a script may import from `path`."""
    below = {each[len(path) + 1 :].partition(".")[0] for each in PATHS if each.startswith(f"{path}.")}
    return sorted({*PATHS.get(path, ()), *getattr(sys.modules.get(path), "__all__", ()), *below})
