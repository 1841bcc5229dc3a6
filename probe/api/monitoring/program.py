"""``msprobe run --task monitor``: a monitor of a program that has no line of ours, and what others share with it."""

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
from probe.backends.protocol import trends_of
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


class WatchedProgram:
    """Waits for the first model of the program that is trained, and for the optimizer that updates it.

    Args:
        module: A pattern of the modules that are wanted, with all inside; ``None`` for all.
    """

    done = "monitored"
    """The word for steps that were collected."""
    command = "monitor report"
    """The command that reads them."""

    def __init__(self, module: str | None) -> None:
        self._module = module
        self._watched: dict[str, TrainingWatch] = {}
        self._failures: dict[str, str] = {}
        self._watch = ImportWatch(tuple(_BACKENDS), self._imported, self._not_imported)
        for name in _BACKENDS:
            if name in sys.modules:
                self._imported(name)

    @property
    def folder(self) -> str:
        """The folder of the files."""
        raise NotImplementedError

    def _begin(self, backend: str, model: Any, optimizer: Any) -> Any:
        """An object that collects from a model, with `steps` and `stop()`; ``None`` if the script collects itself."""
        raise NotImplementedError

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
            log.info(f"{steps} steps were {self.done} into {self.folder}; see: msprobe {self.command} {self.folder}")
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

    def wanted_paths(self, backend: str, model: Any) -> list[str] | None:
        """The paths of the modules of `model` that are wanted, and of those inside them; ``None`` for all.

        Raises:
            MsprobeException: the pattern fits none.
        """
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


class MonitoredProgram(WatchedProgram):
    """Monitors the first model of the program that is trained.

    Args:
        config_path: A configuration file of `TrainerMon`, or ``None``.
        output: The folder of the runs, or ``None`` for that of `TrainerMon`.
        module: As of `WatchedProgram`.

    Raises:
        MsprobeException: something in the configuration is wrong.
    """

    def __init__(self, config_path: str | None, output: str | None, module: str | None) -> None:
        # The program may change its directory.
        self._path = os.path.abspath(config_path) if config_path is not None else ""
        content = read_object(self._path) if config_path is not None else _WITHOUT_FILE
        self._settings: FirstSettings = load(config_path or "msprobe run", content)
        if output is not None or VARIABLE not in os.environ:
            os.environ[VARIABLE] = os.path.abspath(output if output is not None else base())
        super().__init__(module)

    @property
    def folder(self) -> str:
        """The folder of the runs."""
        return base()

    def _begin(self, backend: str, model: Any, optimizer: Any) -> TrainerMon | None:
        """Monitor a model; ``None`` if the script does so itself."""
        if TrainerMon.monitors:
            log.warning("the script has a TrainerMon of its own, which collects; msprobe run does not.")
            return None
        trends = trends_of(loader.load(backend))
        settings = self._settings
        paths = self.wanted_paths(backend, model)
        if paths is not None:
            settings = replace(settings, targets={path: {} for path in paths}, all_xy=False)
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
