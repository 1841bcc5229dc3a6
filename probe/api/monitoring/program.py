"""``msprobe run`` with the tasks ``monitor`` and ``grad_probe``: programs that have no line of ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from probe.api.import_watch import ImportWatch
from probe.api.monitoring.first import TrainerMon, read_settings
from probe.api.monitoring.monitor import Monitor, TrainingWatch, names_for
from probe.backends import loader
from probe.backends.protocol import trends_of
from probe.common import log
from probe.common.config.config import GRAD_PROBE, load_config
from probe.common.config.record_filter import module_pattern
from probe.common.data_files import read_object
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.errors import MsprobeException, failure_text
from probe.monitor.tables import VARIABLE, base

if TYPE_CHECKING:
    from probe.api.monitoring.grad_probe import GradientProbe

_BACKENDS = {framework.module: backend for backend, framework in FRAMEWORKS.items()}
_WITHOUT_FILE: dict[str, Any] = {
    "xy_distribution": True,
    "wg_distribution": True,
    "grad_direction": True,
    "ops": ["norm", "min", "max", "mean"],
    "step_count_per_record": 100,
    "alert": {"rules": []},
}
"""The configuration if no file is given: activations, gradients, and the learned rules."""


_PROBE_PATH = "./msprobe_output"
"""The folder of gradients if nothing names one, as with the other tasks of the command."""

Begin = Callable[[str, Any, Any, Optional[list[str]]], Optional[Monitor]]
"""Collects from a model, by backend, model, optimizer and the paths of wanted modules, ``None`` for all; the result is
``None`` if the script collects itself."""


class WatchedProgram:
    """Waits for the first model of the program that is trained, and for the optimizer that updates it.

    Args:
        module: A pattern of the modules that are wanted, with all inside; ``None`` for all.
        begin: Called with them.
        folder: The folder of the files.
        done: The word for steps that were collected.
        command: The command that reads them.
    """

    def __init__(self, module: str | None, begin: Begin, folder: str, done: str, command: str) -> None:
        self._module, self._collect, self.folder, self._done, self._command = module, begin, folder, done, command
        self._watched: dict[str, TrainingWatch] = {}
        self._failures: dict[str, str] = {}
        self._watch = ImportWatch(tuple(_BACKENDS), self._imported, self._not_imported)
        for name in _BACKENDS:
            if name in sys.modules:
                self._imported(name)

    def _begin(self, backend: str, model: Any, optimizer: Any) -> Monitor | None:
        return self._collect(backend, model, optimizer, self._wanted_paths(backend, model))

    def end(self, reason: str) -> bool:
        """The program has ended: say what was collected, or why nothing was; false if nothing was.

        A failure of the tool is logged, and counts as nothing collected.

        Args:
            reason: What ended the program, as `probe.api.script.Ended` has it; empty if it did not fail.
        """
        try:
            return self._end(reason)
        except Exception as error:
            log.error(f"msprobe run failed to end the collection: {failure_text(error)}")
            return False

    def _end(self, reason: str) -> bool:
        self._watch.remove()
        for each in self._watched.values():
            each.remove()
        begun = [each.monitor for each in self._watched.values() if each.monitor is not None]
        for each in begun:
            each.stop()
        steps = sum(each.steps for each in begun)
        if steps:
            log.info(f"{steps} steps were {self._done} into {self.folder}; see: msprobe {self._command} {self.folder}")
            return True
        if any(each.is_left for each in self._watched.values()):
            return True
        reasons = [each.why_nothing() for each in self._watched.values()] or list(self._failures.values())
        text = reasons[0] if reasons else f"the program imported none of {', '.join(_BACKENDS)} in this process."
        failed = f"the program failed before its first step ({reason})."
        log.warning(f"msprobe run collected nothing: {failed if reason else text}")
        return False

    def _imported(self, name: str) -> None:
        backend = loader.detect(_BACKENDS[name])
        if backend in self._watched:
            return
        try:
            self._watched[backend] = TrainingWatch(backend, self._begin)
        except Exception as error:
            self._failures[name] = failure_text(error)
            log.error(f"msprobe run cannot watch {name}, and the program runs without: {failure_text(error)}")

    def _not_imported(self, name: str, error: Exception) -> None:
        self._failures[name] = f"{name} could not be imported: {failure_text(error)}"

    def _wanted_paths(self, backend: str, model: Any) -> list[str] | None:
        """The paths of the modules of `model` that are wanted, and of those inside them; ``None`` for all."""
        if self._module is None:
            return None
        fits = module_pattern(self._module)
        modules = list(trends_of(loader.load(backend)).modules(model))
        paths = [path for path, each in modules if fits(_record_base(path, each))]
        if not paths:
            text = f"--module {self._module} matches no module of {type(model).__name__}; allowed: a path or a class"
            raise MsprobeException(f"{text}, such as {_examples(modules)}.")
        # Of the empty path, everything is inside.
        return None if "" in paths else paths


def monitored(config_path: str | None, output: str | None, module: str | None) -> WatchedProgram:
    """A program that `TrainerMon` monitors.

    Args:
        config_path: A configuration file of `TrainerMon`, or ``None``.
        output: The folder of the runs, or ``None`` for that of `TrainerMon`.
        module: As of `WatchedProgram`.

    Raises:
        MsprobeException: something in the configuration is wrong.
    """
    # The program may change its directory.
    path = os.path.abspath(config_path) if config_path is not None else ""
    read = read_settings(config_path or "msprobe run", read_object(path) if path else _WITHOUT_FILE)
    if output is not None or VARIABLE not in os.environ:
        os.environ[VARIABLE] = os.path.abspath(output if output is not None else base())

    def begin(backend: str, model: Any, optimizer: Any, paths: list[str] | None) -> TrainerMon | None:
        if TrainerMon.monitors:
            log.warning("the script has a TrainerMon of its own, which collects; msprobe run does not.")
            return None
        trends = trends_of(loader.load(backend))
        settings = read if paths is None else replace(read, targets={path: {} for path in paths}, all_xy=False)
        values = [each for _, each in trends.parameters(model)]
        # Megatron keeps gradients in buffers, which exist before the first step.
        main = any(trends.gradient(each, True) is not trends.gradient(each, False) for each in values)
        kind: type[TrainerMon] = names_for(backend).TrainerMon
        monitor = kind.from_settings(settings, path, main)
        monitor.set_monitor(model, optimizer)
        return monitor

    return WatchedProgram(module, begin, base(), "monitored", "monitor report")


def probed(config_path: str | None, output: str | None, step: list[str] | None, module: str | None) -> WatchedProgram:
    """A program whose gradients are written as with task ``grad_probe``.

    Args:
        config_path: A configuration file of the debugger, or ``None``.
        output: The folder of the files, or ``None`` for that of the file.
        step: The steps of the optimizer that are wanted, as in the file; ``None`` for those of the file.
        module: As of `WatchedProgram`: the parameters of these modules are wanted.

    Raises:
        MsprobeException: something in the configuration is wrong.
    """
    without_file = None if config_path is not None else _PROBE_PATH
    given = load_config(config_path, task=GRAD_PROBE, dump_path=output or without_file, step=step)
    # The program may change its directory.
    config = replace(given, dump_path=os.path.abspath(given.dump_path))

    def begin(backend: str, model: Any, optimizer: Any, paths: list[str] | None) -> GradientProbe | None:
        # It needs numpy, which is imported after the framework of the program.
        from probe.api.monitoring.grad_probe import GradientProbe

        if GradientProbe.probes:
            log.warning("the script has a gradient probe of its own, which collects; msprobe run does not.")
            return None
        probe = GradientProbe(config, backend)
        starts = None if paths is None else tuple(f"{path}." for path in paths)
        probe.begin(model, optimizer, None if starts is None else lambda name: name.startswith(starts))
        return probe

    return WatchedProgram(module, begin, config.dump_path, "probed", "compare ANOTHER_RUN")


def _record_base(path: str, module: Any) -> str:
    """The base of the records of a module, which patterns are written for."""
    return ".".join(filter(None, ("Module", path, type(module).__name__)))


def _examples(modules: Any) -> str:
    return ", ".join([path for path, _ in modules if path][:3]) or "the class of the model"
