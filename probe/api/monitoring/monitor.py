"""Base of the monitors and the gradient probe, a full dump that an alert arms, and the start of a training."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Optional

from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter, training_of
from probe.collect.sinks.trend.recorder import TrendRecorder
from probe.collect.sinks.trend.wanted import Chunk, Wanted, Watched
from probe.common import clock, log
from probe.common.config.fields import numbers_text
from probe.common.errors import MsprobeException, failure_text
from probe.common.files import make_folder
from probe.common.interfaces import Handle
from probe.common.log import ErrorLog
from probe.common.report.trends import TrendStep
from probe.monitor.tables import TableFiles

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


# --- armed dump


_LOOK_SECONDS = 1.0
"""Between two looks for a request."""


class ArmedDump:
    """Starts a `PrecisionDebugger` before a step, and stops it after the step.

    A program with a debugger of its own is left alone: the steps that it dumps are counted by the program.

    Args:
        folder: The folder of this rank; a dump is written to ``dump_step<N>`` in it.
        backend: The name of the framework, as of `TrainerMon`.
        chunk: The model that is dumped.
    """

    def __init__(self, folder: str, backend: str, chunk: Chunk) -> None:
        self._folder, self._backend, self._chunk = folder, backend, chunk
        self._debugger: Any = None
        self._is_armed = False
        self._looked = clock.monotonic()

    def arm(self, step: int) -> None:
        """Dump the step that begins next, after step `step`."""
        self._is_armed = True

    def begin(self, step: int) -> None:
        """Step `step` begins: end the dump of the one before, and begin one if it is asked for."""
        self.close()
        if self._is_armed or self._is_requested():
            self._is_armed = False
            try:
                self._dump(step)
            except Exception as error:
                log.warning(f"monitor: step {step} could not be dumped: {failure_text(error)}; the training goes on.")

    def close(self) -> None:
        """End the dump that goes on, if there is one."""
        debugger, self._debugger = self._debugger, None
        if debugger is None:
            return
        try:
            debugger.stop()
            debugger.step()
            debugger.reset()
        except Exception as error:
            log.warning(f"monitor: the dump could not be ended: {failure_text(error)}; the training goes on.")

    def _dump(self, step: int) -> None:
        kind = names_for(self._backend).PrecisionDebugger
        if kind.exists():
            log.warning(f"monitor: step {step} is not dumped, since the program has a PrecisionDebugger of its own.")
            return
        path = os.path.join(self._folder, f"dump_step{step}")
        debugger = kind(dump_path=path, level="mix")
        debugger.start(self._chunk.model)
        self._debugger = debugger
        log.info(f"monitor: step {step} is dumped to {path}.")

    def _is_requested(self) -> bool:
        now = clock.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        from probe.monitor.schedule import take_request

        return take_request(self._folder)


# --- watch


class TrainingWatch:
    """Implements `probe.backends.protocol.TrainingListener` until a model is trained.

    Args:
        backend: The framework.
        begin: Makes what monitors a model that an optimizer updates; ``None`` if the script does so itself.
        model: The model; ``None`` for the first one of the program that is trained.
        caller: The name of what monitors, for messages.
    """

    def __init__(
        self, backend: str, begin: Callable[[str, Any, Any], Any], model: Any = None, caller: str = "msprobe run"
    ) -> None:
        self._backend, self._begin, self._caller = backend, begin, caller
        self._training = training_of(loader.load(backend))
        self.monitor: Any = None
        self.is_left = False
        """True if the script has a monitor of its own."""
        self._why = ""
        self._given = None if model is None else weakref.ref(model)
        self._name = "" if model is None else type(model).__name__
        """The class of the model."""
        self._handle: Handle | None = self._training.attach_training(self)

    def remove(self) -> None:
        """Watch no longer."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def why_nothing(self) -> str:
        """The reason why no step was monitored."""
        if self._why:
            return self._why
        if self.monitor is not None:
            return "no step was wanted, or the optimizer made none."
        if self._name:
            return f"no optimizer updates {self._name}; a step is one of an optimizer."
        return "no call of a model recorded gradients."

    def enter_forward(self, module: Any, recording: bool) -> None:
        """Begin with the first forward of a model that an optimizer updates."""
        if self._handle is None or not recording or not self._training.has_parameters(module):
            return
        try:
            self._try(module)
        except Exception as error:
            self._why = str(error) if isinstance(error, MsprobeException) else failure_text(error)
            log.error(f"{self._caller} monitors nothing ({self._why}); the program goes on.")
            self.remove()

    def _try(self, module: Any) -> None:
        # What `module` is the whole of, even if the program calls a part of it.
        model = self._training.outermost(module) if self._given is None else self._given()
        if model is None:
            return
        self._name = type(model).__name__
        trained = self._training.trainable(model)
        optimizers = [each for each in self._training.optimizers() if trained & self._training.parameters(each)]
        if not optimizers:
            return
        # The one with most of its parameters; each of its steps is one of the training.
        optimizer = max(optimizers, key=lambda each: len(trained & self._training.parameters(each)))
        if len(optimizers) > 1:
            kind = type(optimizer).__name__
            log.warning(f"{len(optimizers)} optimizers update the model; the steps of {kind} are counted.")
        self.monitor = self._begin(self._backend, model, optimizer)
        self.is_left = self.monitor is None
        self.remove()

    def leave_forward(self) -> None: ...

    def enter_backward(self, mark: Callable[[Any], object]) -> None: ...

    def leave_backward(self, mark: Callable[[Any], object] | None) -> None: ...

    def return_gradients(self, *kept: object) -> None: ...

    def new_optimizer(self) -> None: ...

    def leave_optimizer(self, optimizer: Any) -> None: ...
