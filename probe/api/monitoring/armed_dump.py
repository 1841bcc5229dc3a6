"""A full dump of the next step, which an alert arms, or a user from another process."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from typing import Any

from probe.common import log
from probe.common.report.trends import TrendStep

_DEBUGGERS = {"torch": "probe.api.pytorch", "mindspore": "probe.api.mindspore"}
_LOOK_SECONDS = 1.0
"""Between two looks for a request."""


class ArmedDump:
    """Starts a `PrecisionDebugger` between two steps, and stops it after the step.

    The debugger of the program is used if there is one, with its own configuration.

    Args:
        folder: The folder of this rank; a dump is written to ``dump_step<N>`` in it.
        backend: The name of the framework, as of `TrainerMon`.
        models: The models; the first one is dumped.
    """

    def __init__(self, folder: str, backend: str, models: Sequence[Any]) -> None:
        self._folder, self._backend, self._model = folder, backend, models[0]
        self._debugger: Any = None
        self._is_own = False
        self._step = -1
        self._looked = time.monotonic()

    def arm(self, step: int) -> None:
        """Dump the step that follows `step`."""
        if self._debugger is not None:
            return
        kind = importlib.import_module(_DEBUGGERS[self._backend]).PrecisionDebugger
        self._is_own = kind._instance is None
        path = os.path.join(self._folder, f"dump_step{step + 1}")
        self._debugger = kind(dump_path=path, level="mix") if self._is_own else kind._instance
        self._step = step
        self._debugger.start(self._model)
        log.info(f"monitor: step {step + 1} is dumped to {path if self._is_own else 'the dump_path of the debugger'}.")

    def receive(self, step: TrendStep) -> None:
        """A step is over: end the dump of it, or look for a request."""
        if self._debugger is not None and step.number > self._step:
            debugger, self._debugger = self._debugger, None
            debugger.stop()
            debugger.step()
            if self._is_own:
                debugger.reset()
        elif self._is_requested():
            self.arm(step.number)

    def close(self) -> None:
        """The training ends."""
        debugger, self._debugger = self._debugger, None
        if debugger is not None:
            debugger.stop()

    def _is_requested(self) -> bool:
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        from probe.monitor.requests import take_request

        return take_request(self._folder)
