"""A full dump of the next step, which an alert arms, or a user from another process."""

from __future__ import annotations

import os
from typing import Any

from probe.api.monitoring.monitor import names_for
from probe.collect.sinks.trend.watched import Chunk
from probe.common import clock, log
from probe.common.errors import failure_text

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
        from probe.monitor.requests import take_request

        return take_request(self._folder)
