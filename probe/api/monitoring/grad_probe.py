"""Task ``grad_probe`` of `PrecisionDebugger`: the gradients of each step as a table, and their signs as files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from probe.api.monitoring.parts import AtExit, Receivers, adapter_for
from probe.api.monitoring.watch import TrainingWatch
from probe.backends.protocol import trends_of
from probe.collect.sinks.trend.recorder import TrendRecorder
from probe.collect.sinks.trend.wanted import Wanted, WantedSignatures
from probe.collect.sinks.trend.watched import Watched
from probe.common import log
from probe.common.config.config import Config
from probe.common.config.fields import numbers_text
from probe.common.errors import MsprobeException
from probe.common.report.trends import TrendStep
from probe.monitor.gradients import layout
from probe.monitor.gradients.writing import SignFiles


class GradientProbe:
    """Writes the gradients of a model before each step of its optimizer.

    Args:
        config: The configuration of the debugger.
        backend: The framework.
    """

    probes: ClassVar[int] = 0
    """The number of probes of this process that were ever given a model."""

    def __init__(self, config: Config, backend: str) -> None:
        self._config, self._backend = config, backend
        self._watch: TrainingWatch | None = None
        self._recorder: TrendRecorder | None = None
        self._at_exit: AtExit | None = None
        self._receivers = Receivers()
        self._adapter = adapter_for(backend)
        self.is_given = False
        """True after `monitor`."""
        self.steps = 0
        """The number of steps that were written."""

    def monitor(self, given: Any) -> None:
        """Begin with a model, or an optimizer that names its parameters.

        Args:
            given: A module; with MindSpore an optimizer as well. The optimizer of a module is the one that updates
                most of its parameters; it need not exist yet.

        Raises:
            MsprobeException: it is neither.
        """
        is_optimizer = trends_of(self._adapter).is_optimizer(given)
        if not is_optimizer and not self._adapter.hooks.is_module(given):
            text = f"PrecisionDebugger.monitor: module is a {type(given).__name__}"
            raise MsprobeException(f"{text}; allowed: a module, and with MindSpore its optimizer as well.")
        if self.is_given:
            log.warning("PrecisionDebugger.monitor was called before; the second call has no effect.")
            return
        self._take()
        if is_optimizer:
            self.begin(given, given)
        else:
            begin = self._begin_watched
            self._watch = TrainingWatch(self._backend, begin, given, "PrecisionDebugger.monitor")

    def _take(self) -> None:
        self.is_given = True
        GradientProbe.probes += 1
        self._at_exit = AtExit(self.stop)

    def stop(self) -> None:
        """Take every hook away. Whatever was begun is complete."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self._receivers.attempt("stop", watch.remove)
            if self._recorder is None:
                log.warning(f"PrecisionDebugger.monitor collected nothing: {watch.why_nothing()}")
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            self._receivers.attempt("stop", recorder.close)
        if self._at_exit is not None:
            self._at_exit.cancel()

    def _begin_watched(self, backend: str, model: Any, optimizer: Any) -> TrendRecorder:
        return self.begin(model, optimizer)

    def begin(self, model: Any, optimizer: Any, is_parameter: Callable[[str], bool] | None = None) -> TrendRecorder:
        """Write the gradients of `model` before each step of `optimizer`.

        Args:
            is_parameter: True of the name of a parameter that is wanted among those of the configuration.
        """
        if not self.is_given:
            self._take()
        config, trends = self._config, trends_of(self._adapter)
        rank = self._adapter.rank() or 0
        log.set_rank(self._adapter.rank())
        folder = os.path.join(config.dump_path, f"rank{rank}")
        wants_rank = not config.rank or rank in config.rank
        if wants_rank:
            self._receivers.set_folder(folder)
            self._receivers.add(SignFiles(folder).write)
            self._check(folder, [name for name, _ in trends.parameters(model)])
            self._receivers.add(self._count)
        else:
            log.info(f"rank {rank} is not collected; rank has {numbers_text(config.rank)}.")
        schedule = _Steps(config.step if wants_rank else (-1,))
        wanted = wanted_of(config)
        if is_parameter is not None:
            named = wanted.is_parameter
            wanted = replace(wanted, is_parameter=lambda name: named(name) and is_parameter(name))
        self._recorder = TrendRecorder(
            self._adapter, Watched(self._adapter, [model], optimizer), wanted, schedule, self._receivers.receive,
            self._receivers.failed,
        )  # fmt: skip
        return self._recorder

    def _count(self, step: TrendStep) -> None:
        self.steps += 1

    def _check(self, folder: str, names: Sequence[str]) -> None:
        unknown = [name for name in self._config.param_list if name not in names]
        if unknown:
            shown = f"grad_probe.param_list: {', '.join(unknown[:3])} is not a trained parameter"
            log.warning(f"{shown}; there are {len(names)}, such as {', '.join(names[:3])}.")
        if os.path.isdir(folder) and any(layout.SUMMARY.fullmatch(name) for name in os.listdir(folder)):
            log.warning(
                f"{folder} has tables of an earlier run; this run replaces those with the same step number. To keep "
                "them, give another dump_path."
            )


class _Steps:
    """Implements `probe.collect.sinks.trend.recorder.Schedule`: all steps, or some."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._steps = frozenset(steps)

    def wants(self, step: int) -> bool:
        return not self._steps or step in self._steps

    def collected(self, step: int) -> None: ...


def wanted_of(config: Config) -> Wanted:
    """Selection that the settings of the task describe."""
    names, level = frozenset(config.param_list), config.grad_level
    signatures = WantedSignatures(
        layout.ops_of(level, config.bounds),
        config.bounds if level == "L2" else (),
        layout.has_checksum(level),
        layout.has_signs(level),
    )
    return Wanted(
        ops=dict.fromkeys(("module", "gradient", "optimizer", "parameter", "communication"), ("norm",)),
        course=False,
        is_parameter=lambda name: not names or name in names,
        signatures=signatures,
    )
