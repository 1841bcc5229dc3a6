"""One step of the debugger for each step of the optimizer, in a training that a library runs."""

from __future__ import annotations

from typing import Any

from probe.common.errors import MsprobeException

_CALLS = ("start", "stop", "step", "set_init_step")


class LibrarySteps:
    """The base of the callbacks of all libraries.

    Args:
        callback: The name of the callback, for messages.
        debugger: The `PrecisionDebugger`.

    Raises:
        MsprobeException: `debugger` is none.
    """

    def __init__(self, callback: str, debugger: Any) -> None:
        if not all(callable(getattr(debugger, call, None)) for call in _CALLS):
            kind = type(debugger).__name__
            raise MsprobeException(f"{callback}: debugger is of type {kind}; allowed: a PrecisionDebugger.")
        self._callback = callback
        self._debugger = debugger
        self._begun = False
        """True if any step has begun, in this or an earlier training."""
        self._open = False
        """True if a step has begun and not ended."""

    def __reduce__(self) -> Any:
        # Spawned processes are sent the trainer with its callbacks.
        text = f"{self._callback} cannot be sent to another process, which needs a debugger of its own"
        raise MsprobeException(f'{text}; start the processes with torchrun, or in Lightning with strategy="ddp".')

    def begin_training(self, done: int) -> None:
        """A training begins in which `done` steps of the optimizer lie behind, as they do where it is resumed."""
        self.end()
        if done and not self._begun:
            self._debugger.set_init_step(done)

    def collect(self, model: Any) -> None:
        """Collect from `model`: a step begins, or goes on after `pause`."""
        self._begun = self._open = True
        self._debugger.start(model)

    def pause(self) -> None:
        """Collect nothing that is called from now on; the step is not over."""
        if self._open:
            self._debugger.stop()

    def end(self) -> None:
        """The step is over, if one has begun."""
        if self._open:
            self._open = False
            self._debugger.step()
