"""The gradient probe: task ``grad_probe`` of `PrecisionDebugger`, and `GradComparator` for its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from probe.api.monitoring.monitor import Monitor, TrainingWatch, adapter_for
from probe.backends.protocol import trends_of
from probe.collect.sinks.trend.wanted import Wanted, WantedSignatures, Watched
from probe.common import log
from probe.common.config.config import Config
from probe.common.config.fields import numbers_text
from probe.common.errors import MsprobeException
from probe.monitor.directions import turn_of_probes
from probe.monitor.gradient_files import GradientFiles, ops_of
from probe.monitor.gradients import RankSimilarity, compare_runs, lines_of, write_results


class GradientProbe(Monitor):
    """Writes the gradients of a model before each step of its optimizer.

    Args:
        config: The configuration of the debugger.
        backend: The framework.
    """

    probes: ClassVar[int] = 0
    """The number of probes of this process that were ever given a model."""

    def __init__(self, config: Config, backend: str) -> None:
        super().__init__()
        self._config, self._backend = config, backend
        self._watch: TrainingWatch | None = None
        self._adapter = adapter_for(backend)
        self.is_given = False
        """True after `monitor`."""

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
            self._watch = TrainingWatch(self._backend, self._begin_watched, given, "PrecisionDebugger.monitor")

    def _take(self) -> None:
        self.is_given = True
        GradientProbe.probes += 1
        self._stop_with_process()

    def stop(self) -> None:
        """Take every hook away. Whatever was begun is complete."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self._attempt("stop", watch.remove)
            if self._recorder is None:
                log.warning(f"PrecisionDebugger.monitor collected nothing: {watch.why_nothing()}")
        super().stop()

    def _begin_watched(self, backend: str, model: Any, optimizer: Any) -> GradientProbe:
        self.begin(model, optimizer)
        return self

    def begin(self, model: Any, optimizer: Any, is_parameter: Callable[[str], bool] | None = None) -> None:
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
        steps: Sequence[int] = config.step
        if wants_rank:
            self._use_folder(folder)
            files = GradientFiles(folder)
            self.add_receiver(files.write)
            self._check(files, [name for name, _ in trends.parameters(model)])
        else:
            steps = (-1,)
            log.info(f"rank {rank} is not collected; rank has {numbers_text(config.rank)}.")
        wanted = wanted_of(config)
        if is_parameter is not None:
            named = wanted.is_parameter
            wanted = replace(wanted, is_parameter=lambda name: named(name) and is_parameter(name))
        watched = Watched(self._adapter, [model], optimizer)
        self._record(self._adapter, watched, wanted, lambda step: not steps or step in steps, lambda step: None)

    def _check(self, files: GradientFiles, names: Sequence[str]) -> None:
        unknown = [name for name in self._config.param_list if name not in names]
        if unknown:
            shown = f"grad_probe.param_list: {', '.join(unknown[:3])} is not a trained parameter"
            log.warning(f"{shown}; there are {len(names)}, such as {', '.join(names[:3])}.")
        if files.steps:
            log.warning(
                f"{files.folder} has tables of an earlier run; this run replaces those with the same step number. "
                "To keep them, give another dump_path."
            )


def wanted_of(config: Config) -> Wanted:
    """Selection that the settings of the task describe."""
    names, level = frozenset(config.param_list), config.grad_level
    bounds = config.bounds if level == "L2" else ()
    signatures = WantedSignatures(ops_of(bounds), bounds, checksum=level == "L0", bits=level != "L0")
    return Wanted(
        ops=dict.fromkeys(("module", "gradient", "optimizer", "parameter", "communication"), ("norm",)),
        course=False,
        is_parameter=lambda name: not names or name in names,
        signatures=signatures,
        gradient_sketches=config.sketch,
    )


# --- grad comparator


class GradComparator:
    """Compares what task ``grad_probe`` wrote of two runs with ``grad_level`` ``L1`` or ``L2``."""

    @staticmethod
    def compare_distributed(dump_path1: str, dump_path2: str, output_path: str) -> list[RankSimilarity]:
        """Write the similarity of the gradients of each parameter and step, and a picture of each parameter.

        Args:
            dump_path1, dump_path2: The ``dump_path`` of each run.
            output_path: The folder for the results, made if it is missing; with ``rank<R>`` if there are several ranks.

        Returns:
            The similarities of each rank.

        Raises:
            MsprobeException: a path is no folder of the task, or the runs have nothing in common.
        """
        found = compare_runs(dump_path1, dump_path2)
        write_results(output_path, found)
        for line in lines_of(found, turn_of_probes(dump_path1, dump_path2)):
            log.info(line)
        return found
