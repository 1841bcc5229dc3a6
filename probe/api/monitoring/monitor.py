"""Base of both monitors and of the gradient probe: a recorder of steps, all that take its steps, and its end."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Optional

from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter
from probe.collect.sinks.trend.recorder import TrendRecorder
from probe.collect.sinks.trend.wanted import Wanted
from probe.collect.sinks.trend.watched import Watched
from probe.common import log
from probe.common.config.fields import numbers_text
from probe.common.errors import MsprobeException, failure_text
from probe.common.files import make_folder
from probe.common.log import ErrorLog
from probe.common.report.trends import TrendStep
from probe.monitor.output.tables import TableFiles

_NAMES = {"torch": "probe.api.pytorch", "mindspore": "probe.api.mindspore", "msadapter": "probe.api.mindspore"}


class Monitor:
    """Statistics of one training, step by step.

    A failure of the tool is logged once for each place. It reaches neither the training nor what else takes steps.
    """

    def __init__(self) -> None:
        self.steps = 0
        """The number of steps that were collected."""
        self._recorder: Optional[TrendRecorder] = None  # noqa: UP045
        self._receivers: list[Callable[[TrendStep], None]] = []
        self._closing: list[Callable[[], None]] = []
        """Called at the end, after the recorder was closed."""
        self._use_folder("")

    def stop(self) -> None:
        """End monitoring: put everything back, and complete the files."""
        atexit.unregister(self._stop_at_exit)
        recorder, self._recorder = self._recorder, None
        closing, self._closing = self._closing, []
        for close in closing if recorder is None else (recorder.close, *closing):
            self._attempt("stop", close)

    @property
    def folder(self) -> str:
        """The folder of this rank; empty if the rank is not monitored."""
        return self._folder

    def add_receiver(self, receive: Callable[[TrendStep], None]) -> None:
        """Call `receive` with each collected `probe.common.report.trends.TrendStep`, for other places than files."""
        self._receivers.append(receive)

    # --- for the monitors that are built on it

    def _enter(self, adapter: FrameworkAdapter, wanted: Sequence[int], key: str) -> bool:
        """Learn the rank; false, and said, if it is not one of those that `key` of the configuration names.

        Args:
            wanted: The ranks that are monitored; empty for all. A training of a single process is rank 0.
        """
        rank = adapter.rank()
        self._rank = rank or 0
        log.set_rank(rank)
        if not wanted or self._rank in wanted:
            return True
        text = f"rank {self._rank} is not monitored; {key} has {numbers_text(wanted)}."
        if rank is None:
            log.warning(f"{text} This training has a single process, so nothing is written.")
        else:
            log.info(text)
        return False

    def _use_folder(self, folder: str) -> None:
        """Write failures to the log of `folder`, too. The steps are those of this process from now on."""
        self._folder, self._errors = folder, ErrorLog(folder)
        self._process = os.getpid()

    def _write_to(self, files: TableFiles) -> None:
        self.add_receiver(files.write)
        self._closing.append(files.close)

    def _record(
        self,
        adapter: FrameworkAdapter,
        watched: Watched,
        wanted: Wanted,
        wants: Callable[[int], bool],
        collected: Callable[[int], None],
        first: int = 0,
        micro_batches: int = 0,
        counts_steps: bool = True,
    ) -> None:
        """Collect from now on, until `stop` or the end of the process; for the arguments see `TrendRecorder`."""
        self._recorder = TrendRecorder(
            adapter, watched, wanted, wants, collected, self._receive, self._failed, first, micro_batches, counts_steps
        )
        self._stop_with_process()

    def _stop_with_process(self) -> None:
        atexit.unregister(self._stop_at_exit)
        atexit.register(self._stop_at_exit)

    def _stop_at_exit(self) -> None:
        # A process that was forked has a copy.
        if os.getpid() == self._process:
            self.stop()

    def _receive(self, step: TrendStep) -> None:
        """One step. Those of a process that was forked would be written among those of the one that it came from."""
        if os.getpid() != self._process:
            text = "monitor: this process was forked from the one that is monitored; its steps are not written."
            log.warning(text, once=f"monitor fork {os.getpid()}")
            return
        for each in self._receivers:
            self._attempt(getattr(each, "__qualname__", "the monitor"), each, step)
        self.steps += 1

    def _attempt(self, about: str, function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            self._failed(about, error)

    def _failed(self, about: Any, error: BaseException) -> None:
        name = about if isinstance(about, str) else str(getattr(about, "base", "the monitor"))
        slug = f"monitor {type(error).__name__} {name}"
        log.warning(f"monitor: {name}: {failure_text(error)}; the training goes on.", once=slug)
        if self._folder:
            with contextlib.suppress(MsprobeException):  # it was logged
                make_folder(self._folder)
                self._errors.add(name, error)


def adapter_for(backend: str) -> FrameworkAdapter:
    """An adapter for one monitor alone: it has one listener, and the debugger of the process has its own."""
    return type(loader.serve(backend))()


def names_for(backend: str) -> Any:
    """The module with the names that the users of a framework import."""
    return importlib.import_module(_NAMES[backend])


def models_in(model: Any, adapter: FrameworkAdapter, call: str) -> list[Any]:
    """The chunks of a model, which is one or several.

    Raises:
        MsprobeException: it is no model; the message names `call`.
    """
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    for each in models:
        if not adapter.hooks.is_module(each):
            raise MsprobeException(f"{call}: model is a {type(each).__name__}; allowed: a module or a list of modules.")
    if not models:
        raise MsprobeException(f"{call}: model is an empty list; allowed: a module or a list of modules.")
    return models
