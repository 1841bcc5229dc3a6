"""Where the steps of a program begin and end that has no line of ours in its script.

A step begins with the first forward that records gradients, and all that follows belongs to it until every optimizer
has updated its parameters. What runs between that and the next such forward, such as an evaluation, is not collected.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from probe.backends.protocol import TrainingHooks
from probe.common import log
from probe.common.dump import naming
from probe.common.errors import MsprobeException
from probe.common.interfaces import Handle

if TYPE_CHECKING:
    # The command line reads the names of events here, and need not wait for the rest.
    from probe.collect.session import Session

AUTO, FORWARD, BACKWARD, OPTIMIZER = "auto", "forward", "backward", "optimizer"
STEP_AFTER = (BACKWARD, OPTIMIZER, FORWARD)
"""What a user can have every step end with; without that it is `AUTO`."""

_PATIENCE = 16
"""An optimizer that did not step while others did so often is not waited for any more."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _guarded(method: _Method) -> _Method:
    """A failure of the tool ends collection and not the training."""

    @functools.wraps(method)
    def guarded(self: TrainingLoop, *args: Any) -> None:
        if self._handle is None:
            return
        try:
            method(self, *args)
        except Exception as error:
            why = str(error) if isinstance(error, MsprobeException) else f"{type(error).__name__}: {error}"
            self.failure = self.failure or why
            log.error(f"msprobe run collects nothing more ({why}); the training goes on.")
            self.end()
            if self.session is not None:
                self.session.stop()

    return guarded  # type: ignore[return-value]


class TrainingLoop:
    """Implements `probe.backends.protocol.TrainingListener`: starts, stops and counts the steps of a session.

    Args:
        training: What the framework says of the program.
        step_after: ``auto``, or what every step ends with: ``forward``, ``backward`` or ``optimizer``.
        make_session: Called when the first step begins; ``None`` if somebody else collects from this process.
    """

    def __init__(self, training: TrainingHooks, step_after: str, make_session: Callable[[], Session | None]) -> None:
        self._training = training
        self._step_after = step_after
        self._make_session = make_session
        self.session: Session | None = None
        self.forwards = 0
        """How many outermost forwards were seen, with gradients or without."""
        self.steps = 0
        """How many steps have ended."""
        self.failure = ""
        """Why nothing more is collected."""
        self._in_forward = False
        self._thread = 0
        """The thread that began the step."""
        self.step_open = False
        """Whether a step has begun and not ended."""
        self._end_due = False
        """The step ends when the forward has ended in which its optimizer was called."""
        self._models: dict[str, weakref.ref[Any]] = {}
        """By the prefix of their names, in the order in which they were called first."""
        self._numbers = itertools.count(1), itertools.count(1)
        """The numbers of further models, and of parts of models that are gone; none is used twice."""
        self._noted: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        """The modules of the models that were looked for, each with its model."""
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()
        """The modules that were called in training mode."""
        self._optimizers: weakref.WeakKeyDictionary[Any, frozenset[int]] | None = None
        """The parameters of each optimizer that is waited for; ``None`` until they were looked for."""
        self._of_parent: weakref.WeakSet[Any] = weakref.WeakSet()
        """In a process that was forked: the optimizers of its parent, which are waited for once they step here."""
        self._updated: set[int] = set()
        """The parameters that were updated in this step."""
        self._updates: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """How often each optimizer has stepped in this step."""
        self._handle: Handle | None = training.attach_training(self)

    # --- what the program does

    @_guarded
    def enter_forward(self, module: Any, recording: bool) -> None:
        self.forwards += 1
        if self.step_open:
            if self._is_of_step():
                self._in_forward = True
                self._add(module)
        elif self._begins_step(module, recording):
            self._in_forward = True
            self._begin_step(module)

    @_guarded
    def leave_forward(self) -> None:
        if not self._is_of_step():
            return
        self._in_forward = False
        if self._end_due or (self._step_after == FORWARD and self.step_open):
            self._end_step()

    @_guarded
    def leave_backward(self) -> None:
        if self._is_of_step() and (self._step_after == BACKWARD or (self._step_after == AUTO and self._no_optimizer())):
            self._end_step()

    @_guarded
    def leave_optimizer(self, optimizer: Any) -> None:
        if not self._is_of_step():
            self._note_optimizer(optimizer)
        elif self._step_after == OPTIMIZER or (self._step_after == AUTO and self._all_have_stepped(optimizer)):
            self._end_step()

    def _is_of_step(self) -> bool:
        """Whether what is reported belongs to the step that has begun: another thread may train another model."""
        return self.step_open and threading.get_ident() == self._thread

    # --- steps

    def _begin_step(self, module: Any) -> None:
        if self.session is None:
            self.session = self._make_session()
        if self.session is None:
            self.end()
            return
        self.step_open = True
        self._thread = threading.get_ident()
        # Of steps that are not wanted too: names do not depend on which steps are collected.
        self._note(module)
        if self.session.step_wanted:
            self.session.start(self._by_prefix(), None, None)

    def _add(self, module: Any) -> None:
        """A model that was not called before is collected from as well."""
        if self.session is not None and self._note(module) and self.session.active:
            self.session.extend(self._by_prefix())

    def _end_step(self) -> None:
        session = self.session
        if self._in_forward or session is None:
            self._end_due = True
            return
        self.step_open = self._end_due = False
        self._updated.clear()
        self._updates.clear()
        self.steps += 1
        session.stop()
        session.step()
        if not session.remaining:
            self.end()

    def end(self) -> None:
        """Watch the program no longer."""
        handle, self._handle = self._handle, None
        self.step_open = self._end_due = False
        if handle is not None:
            handle.remove()

    def forked(self) -> None:
        """This process is another one now, which has trained nothing yet; the old session is its parent's."""
        left, ended = self.session, self._handle is None
        self.session = None
        self.forwards = self.steps = 0
        self.step_open = self._end_due = self._in_forward = False
        self._models.clear()
        self._noted = weakref.WeakSet()
        self._trained = weakref.WeakSet()
        self._of_parent = weakref.WeakSet(self._optimizers or ())
        self._optimizers = None
        self._updated.clear()
        self._updates.clear()
        if ended and left is not None and not self.failure:
            # The parent has all that it wanted.
            self._handle = self._training.attach_training(self)

    # --- models

    def _begins_step(self, module: Any, recording: bool) -> bool:
        """Whether this is a call of a model, and not of something without parameters that prepares data."""
        trains = self._step_after == FORWARD or (recording and not self._evaluates(module))
        return trains and self._training.has_parameters(module)

    def _evaluates(self, module: Any) -> bool:
        """Whether a module that was trained before is called in evaluation mode, with gradients nobody asks for."""
        if getattr(module, "training", True):
            self._trained.add(module)
            return False
        return module in self._trained

    def _note(self, module: Any) -> bool:
        """Note the model that `module` is a part of; whether it is a new one.

        A module without parameters, such as a loss function, is no model.
        """
        if self._is_noted(module) or not self._training.has_parameters(module):
            return False
        # What outlives its model does not count as one: the garbage collector decides when the model is gone.
        outlives = module in self._noted
        model = module if outlives else self._training.outermost(module)
        noted = weakref.ref(model)
        if not self._is_noted(model):
            models, parts = self._numbers
            prefix = naming.part_prefix(next(parts)) if outlives else naming.model_prefix(next(models))
            self._models[prefix] = noted
        for each in (module, model, *self._training.inside(model)):
            if not self._is_noted(each):
                self._noted[each] = noted
        return True

    def _is_noted(self, module: Any) -> bool:
        """Whether `module` is part of a model that was noted and is there."""
        noted = self._noted.get(module)
        return noted is not None and noted() is not None

    def _by_prefix(self) -> dict[str, Any]:
        """The models that are still there, each with a prefix that no other one has or had."""
        self._models = {prefix: noted for prefix, noted in self._models.items() if noted() is not None}
        models = ((prefix, noted()) for prefix, noted in self._models.items())
        return {prefix: model for prefix, model in models if model is not None}

    # --- optimizers

    def _no_optimizer(self) -> bool:
        if not self._optimizers:
            self._find_optimizers()
        return not self._optimizers

    def _find_optimizers(self) -> None:
        self._optimizers = self._optimizers or weakref.WeakKeyDictionary()
        for optimizer in self._training.optimizers():
            if optimizer not in self._of_parent:
                self._note_optimizer(optimizer)

    def _note_optimizer(self, optimizer: Any) -> None:
        parameters = self._training.parameters(optimizer)
        if parameters and self._optimizers is not None:
            self._optimizers[optimizer] = parameters

    def _all_have_stepped(self, optimizer: Any) -> bool:
        """Whether every optimizer has stepped, or one that has parameters of it, such as the one that it wraps."""
        if self._optimizers is None:
            self._find_optimizers()
        assert self._optimizers is not None
        self._note_optimizer(optimizer)
        if optimizer not in self._optimizers:
            return False  # it has no parameters
        self._updated |= self._optimizers[optimizer]
        self._updates[optimizer] = self._updates.get(optimizer, 0) + 1
        waiting = self._waiting()
        if waiting and self._updates[optimizer] >= _PATIENCE:
            log.warning(f"{self.waiting_text()} A step no longer waits for the other one.")
            for unused in waiting:
                del self._optimizers[unused]
            waiting = []
        return not waiting

    def _waiting(self) -> list[Any]:
        """The optimizers that the step waits for."""
        return [each for each, owned in list((self._optimizers or {}).items()) if not owned & self._updated]

    def waiting_text(self) -> str:
        """Why the step that has begun has not ended."""
        waiting = ", ".join(type(each).__name__ for each in self._waiting())
        if self._step_after != AUTO or not self._updates or not waiting:
            return "No optimizer was seen to step; --step-after backward, or forward, says what ends a step."
        stepped = " and ".join(f"{type(each).__name__} ({count} times)" for each, count in self._updates.items())
        return f"In one step {stepped} stepped and {waiting} not once; --step-after optimizer ends a step with each."
