"""Module paths of msProbe's releases in one table, none of them a file here, and functions that older scripts call.

A path is served when a script imports it, and a name is looked up when it is asked for: nothing else is imported.
"""

from __future__ import annotations

import importlib
import importlib.abc
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from probe.common import log
from probe.common.errors import MsprobeException

_PYTORCH, _MINDSPORE, _SAVED = "probe.api.pytorch", "probe.api.mindspore", "probe.api.single_save"
_TABLE = (
    (_PYTORCH, "PrecisionDebugger", "pytorch.debugger", "pytorch.debugger.precision_debugger"),
    (_PYTORCH, "seed_all", "pytorch.common", "pytorch.common.utils"),
    (_PYTORCH, "TrainerMon", "pytorch.monitor", "pytorch.monitor.module_hook"),
    (_PYTORCH, "PtdbgDispatch", "pytorch.online_dispatch"),
    (_PYTORCH, "MsprobeLightningCallback MsprobeTrainerCallback", "pytorch.integrations"),
    (_MINDSPORE, "PrecisionDebugger", "mindspore.debugger", "mindspore.debugger.precision_debugger"),
    (_MINDSPORE, "MsprobeInitStep MsprobeStep seed_all", "mindspore.common", "mindspore.common.utils"),
    (_MINDSPORE, "TrainerMon", "mindspore.monitor", "mindspore.monitor.module_hook"),
    (_SAVED, "SingleComparator SingleSave", "core.single_save"),
    (_SAVED, "SingleComparator", "core.single_save.single_comparator"),
    (_SAVED, "SingleSave", "core.single_save.single_saver"),
    (__name__, "compare compare_distributed", "core.compare",
     "pytorch.compare", "pytorch.compare.distributed_compare", "pytorch.compare.pt_compare",
     "mindspore.compare", "mindspore.compare.distributed_compare"),
    (__name__, "CSV2DBConfig csv2db", "core.monitor.csv2db"),
    ("probe.monitor.tensorboard", "csv2tensorboard_by_step",
     "core.monitor.csv2tb", "pytorch.monitor.csv2tb"),
    ("probe.api.monitoring.grad_probe", "GradComparator", "core.grad_probe", "core.grad_probe.grad_compare"),
    ("probe.api.monitoring.second", "TrainerMonitorV2", "core.monitor_v2", "core.monitor_v2.trainer"),
    ("probe.api.config_checker", "ConfigChecker", "core.config_check", "core.config_check.config_checker"),
)  # fmt: skip
"""A module of ours, names of it, and the paths below ``msprobe`` that have these names."""
PATHS: dict[str, dict[str, str]] = {
    f"msprobe.{path}": dict.fromkeys(names.split(), module) for module, names, *paths in _TABLE for path in paths
}
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


# --- functions, in the words of today's commands


def compare(
    input_param: Mapping[str, Any],
    output_path: str,
    stack_mode: bool = False,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
) -> None:
    """Compare two dumps as ``msprobe compare --xlsx`` does.

    Args:
        input_param: ``npu_json_path`` and ``bench_json_path``, the ``dump.json`` of each run, and
            ``is_print_compare_log``, a line for each pair of tensors.
        output_path: The folder for the table.
        stack_mode, auto_analyze: Accepted and without effect: the stacks and the first divergence are always given.
        fuzzy_match: Match calls by their order and not by their numbers.

    Raises:
        MsprobeException: a path is missing, or the two cannot be compared.
    """
    pair = [input_param.get(key) for key in ("npu_json_path", "bench_json_path")]
    if not all(isinstance(path, str) and path for path in pair):
        raise MsprobeException(
            f'compare: input_param is {dict(input_param)!r}; allowed: a dict with the paths "npu_json_path" and '
            '"bench_json_path".'
        )
    target, golden = map(str, pair)
    _compare(target, golden, output_path, fuzzy_match, bool(input_param.get("is_print_compare_log", False)))


def compare_distributed(npu_dump_dir: str, bench_dump_dir: str, output_path: str, **options: Any) -> None:
    """Compare the ranks of a step as ``msprobe compare --xlsx`` does, or all steps of two runs.

    Args:
        npu_dump_dir, bench_dump_dir: The folder of a step of each run, or of all steps.
        output_path: The folder for the tables.
        options: ``fuzzy_match`` and ``is_print_compare_log``; others are accepted and have no effect.

    Raises:
        MsprobeException: the two cannot be compared.
    """
    is_logged = bool(options.get("is_print_compare_log", False))
    _compare(npu_dump_dir, bench_dump_dir, output_path, bool(options.get("fuzzy_match", False)), is_logged)


def _compare(target: str, golden: str, output: str, is_fuzzy: bool, is_logged: bool) -> None:
    # Whoever only collects waits for none of this.
    from probe.api.rules import rules_for
    from probe.compare.options import Options
    from probe.compare.runner import summaries
    from probe.compare.summary_text import styled_lines

    options = Options(rules=rules_for("rows", None), fuzzy=is_fuzzy)
    for text, _ in styled_lines(list(summaries(target, golden, output, options, True, tensor_log=is_logged))):
        print(text)


@dataclass(frozen=True)
class CSV2DBConfig:
    """The arguments of `csv2db`.

    Args:
        monitor_path: The output folder of a monitor.
        time_start, time_end, data_type_list: Accepted and without effect, with a warning: all rows are converted.
        process_num: Accepted and without effect.
        output_dirpath: The folder for the file; by default that of the monitor.
    """

    monitor_path: str
    time_start: str | None = None
    time_end: str | None = None
    process_num: int = 1
    data_type_list: Sequence[str] | None = None
    output_dirpath: str | None = None


def csv2db(config: CSV2DBConfig) -> None:
    """Write the rows of a monitor to an SQLite file as ``msprobe data2db`` does.

    Raises:
        MsprobeException: the folder has no rows of a monitor, or the file cannot be written.
    """
    from probe.api.rules import writer

    for name in ("time_start", "time_end", "data_type_list"):
        if getattr(config, name) is not None:
            log.warning(f"csv2db: {name} has no effect; all rows of {config.monitor_path} are converted.", once=name)
    source = os.path.expanduser(config.monitor_path)
    log.info(writer("monitor", "data2db")(source, os.path.expanduser(config.output_dirpath or source), None))
