"""The moment in which a program begins to train a model, seen from outside."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from probe.backends import loader
from probe.backends.protocol import training_of
from probe.common import log
from probe.common.errors import MsprobeException, failure_text
from probe.common.interfaces import Handle


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
        self._forwards = 0
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
        return f"{self._forwards} calls of models were seen, and none of them recorded gradients."

    def enter_forward(self, module: Any, recording: bool) -> None:
        """Begin with the first forward of a model that an optimizer updates."""
        self._forwards += 1
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
