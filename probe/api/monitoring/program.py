"""``msprobe run --task monitor``: a monitor of a program that has no line of ours."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from typing import Any

from probe.api.import_watch import ImportWatch
from probe.api.monitoring.first import TrainerMon
from probe.api.monitoring.parts import as_models
from probe.api.monitoring.watch import TrainingWatch
from probe.backends import loader
from probe.common import log
from probe.common.config.json_file import read_object
from probe.common.config.name_patterns import module_pattern
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.errors import MsprobeException, failure_text
from probe.monitor.output.folders import VARIABLE, base
from probe.monitor.setup.first import FirstSettings, load

_BACKENDS = {framework.module: backend for backend, framework in FRAMEWORKS.items()}
_WITHOUT_FILE: dict[str, Any] = {
    "xy_distribution": True,
    "wg_distribution": True,
    "ops": ["norm", "min", "max", "mean"],
    "step_count_per_record": 100,
    "alert": {"rules": []},
}
"""The configuration if no file is given: activations, gradients, and the learned rules."""


class MonitoredProgram:
    """Monitors the first model of the program that is trained, with the optimizer that updates it.

    Args:
        config_path: A configuration file of `TrainerMon`, or ``None``.
        output: The folder of the runs, or ``None`` for that of `TrainerMon`.
        module: A pattern of the modules that are monitored, with all inside; ``None`` for all.

    Raises:
        MsprobeException: something in the configuration is wrong.
    """

    def __init__(self, config_path: str | None, output: str | None, module: str | None) -> None:
        # The program may change its directory.
        self._path = os.path.abspath(config_path) if config_path is not None else ""
        content = read_object(self._path) if config_path is not None else _WITHOUT_FILE
        self._settings: FirstSettings = load(config_path or "msprobe run", content)
        self._module = module
        if output is not None or VARIABLE not in os.environ:
            os.environ[VARIABLE] = os.path.abspath(output if output is not None else base())
        self._watched: dict[str, TrainingWatch] = {}
        self._failures: dict[str, str] = {}
        self._watch = ImportWatch(tuple(_BACKENDS), self._imported, self._not_imported)
        for name in _BACKENDS:
            if name in sys.modules:
                self._imported(name)

    @property
    def folder(self) -> str:
        """The folder of the runs."""
        return base()

    def end(self) -> bool:
        """The program has ended: say what was monitored, or why nothing was; false if nothing was.

        A failure of the tool is logged, and counts as nothing monitored.
        """
        try:
            return self._end()
        except Exception as error:
            log.error(f"msprobe run failed to end the monitor: {failure_text(error)}")
            return False

    def _end(self) -> bool:
        self._watch.remove()
        for each in self._watched.values():
            each.remove()
        monitors = [each.monitor for each in self._watched.values() if each.monitor is not None]
        for monitor in monitors:
            monitor.stop()
        steps = sum(monitor.steps for monitor in monitors)
        if steps:
            log.info(f"{steps} steps were monitored into {self.folder}; see: msprobe monitor report {self.folder}")
            return True
        if any(each.is_left for each in self._watched.values()):
            return True
        reasons = [each.why_nothing() for each in self._watched.values()] or list(self._failures.values())
        text = reasons[0] if reasons else f"the program imported none of {', '.join(_BACKENDS)} in this process."
        log.warning(f"msprobe run collected nothing: {text}")
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

    def _begin(self, backend: str, model: Any, optimizer: Any) -> TrainerMon | None:
        """Monitor a model; ``None`` if the script does so itself."""
        if TrainerMon.monitors:
            log.warning("the script has a TrainerMon of its own, which collects; msprobe run does not.")
            return None
        adapter = loader.load(backend)
        trends = adapter.trends
        settings = self._settings
        if self._module is not None:
            fits = module_pattern(self._module)
            paths = [path for path, each in trends.modules(model) if fits(_record_base(path, each))]
            if not paths:
                text = f"--module {self._module} fits no module of {type(model).__name__}; allowed: a path or a class"
                raise MsprobeException(f"{text}, such as {_examples(trends.modules(model))}.")
            targets: dict[str, Any] = {path: {} for path in paths}
            settings = replace(settings, targets=targets, all_xy=False) if "" not in targets else settings
        names = [each for _, each in trends.parameters(model)]
        # Megatron keeps gradients in buffers, which exist before the first step.
        main = any(trends.gradient(each, True) is not trends.gradient(each, False) for each in names)
        kind: type[TrainerMon] = importlib.import_module(_MONITORS[backend]).TrainerMon
        monitor = kind.of_settings(settings, self._path, main)
        monitor.set_monitor(as_models(model), optimizer)
        return monitor


_MONITORS = {"torch": "probe.api.pytorch", "mindspore": "probe.api.mindspore", "msadapter": "probe.api.mindspore"}


def _record_base(path: str, module: Any) -> str:
    """The base of the records of a module, which patterns are written for."""
    return ".".join(filter(None, ("Module", path, type(module).__name__)))


def _examples(modules: Any) -> str:
    return ", ".join([path for path, _ in modules if path][:3]) or "the class of the model"
